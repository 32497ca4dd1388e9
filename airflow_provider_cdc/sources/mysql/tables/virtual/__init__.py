"""VIRTUAL columns: their expressions, and whether every session computes the same value of a row.

``grammar`` reads an expression, ``values`` describes what a part of it gives, ``functions`` lists the functions,
``session_independence`` decides, and ``generated`` (beside this package) asks for a table.
"""
