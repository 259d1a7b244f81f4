"""The rows of a table to a Kafka topic, exactly once for readers of committed records (docs/rollups.md)."""
