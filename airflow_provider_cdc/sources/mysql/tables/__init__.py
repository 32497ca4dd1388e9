"""MySQL tables: schemas, types, character sets, generated columns, cascades."""
