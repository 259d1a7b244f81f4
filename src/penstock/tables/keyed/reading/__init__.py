"""Rows of a keyed table for people, and where the rows of a key lie."""
