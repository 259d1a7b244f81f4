"""Penstock: Kafka topics into tables, every record once, on Spark."""
