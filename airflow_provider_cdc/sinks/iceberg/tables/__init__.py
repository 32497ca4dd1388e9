"""The Iceberg table of a copied table: its name, columns, partitioning, and changes of its schema"""
