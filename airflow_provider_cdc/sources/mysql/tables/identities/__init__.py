"""Identities of tables: whether a table is still the one that the run recorded"""
