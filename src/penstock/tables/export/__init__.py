"""Plain Parquet files by type and day, under a ledger that keeps the positions (RULES L1 to L8)."""
