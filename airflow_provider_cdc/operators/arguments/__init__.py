"""The arguments of operators: their types, options, templates and checks"""
