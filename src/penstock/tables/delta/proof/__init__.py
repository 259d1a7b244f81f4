"""What `verify` checks of a single Delta table: its facts, its files, and the values of its rows."""
