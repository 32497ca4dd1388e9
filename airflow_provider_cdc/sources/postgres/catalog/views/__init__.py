"""Database views: what they read, and whether all sessions of a run see the same rows"""
