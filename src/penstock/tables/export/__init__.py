"""Mixed event types of one log into plain Parquet or Delta tables, by type and day (RULES E1 to E7)."""
