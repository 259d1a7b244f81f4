"""Compaction and vacuum of a keyed table."""
