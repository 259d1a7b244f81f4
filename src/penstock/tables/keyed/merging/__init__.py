"""Merges rows of a batch with those of the table, bucket by bucket: inside Spark's tasks, on Arrow and Polars."""
