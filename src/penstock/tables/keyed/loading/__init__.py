"""Batch loads: rows of files into a keyed table, each file once."""
