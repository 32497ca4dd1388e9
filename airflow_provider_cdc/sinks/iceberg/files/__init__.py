"""Files of Iceberg tables: the records of new files, snapshots of exactly these files, and removal"""
