"""The kind `keyed`: a Delta table whose rows are unique by (partition key, row key); the last write wins."""
