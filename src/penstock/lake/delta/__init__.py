"""The log of a Delta table: its files, app transactions and columns."""
