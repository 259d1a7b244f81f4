"""What is proved of a table and its log, whatever its kind: invariants, offsets, files and values."""
