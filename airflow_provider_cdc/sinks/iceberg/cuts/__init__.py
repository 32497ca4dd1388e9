"""Cuts: the set of the copies of all tables of one run"""
