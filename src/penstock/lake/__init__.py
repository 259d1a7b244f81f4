"""Delta tables: their logs, proposals to them, compaction and vacuum."""
