"""A folder of its own, because spark-submit puts the folder of its entry file on the import path."""
