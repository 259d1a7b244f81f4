"""Each offset once: log, table and quarantine compared."""
