"""A durable HTTP log for sources that cannot replay (docs/wal.md)."""
