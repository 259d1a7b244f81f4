"""Many types from one log: routing, counting, and files by type and day."""
