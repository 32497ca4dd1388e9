"""PostgreSQL's catalog: schemas, types, replica identities."""
