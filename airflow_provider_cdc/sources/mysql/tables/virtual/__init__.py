"""Expressions of VIRTUAL columns: checks that every session computes the same value for a row.

``grammar`` parses an expression, ``values`` describes the values of its parts, ``functions`` lists the functions,
``session_independence`` decides, and the module ``generated`` beside this package runs the check for a table.
"""
