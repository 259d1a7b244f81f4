"""How rows of a batch meet those that are there, bucket by bucket: inside Spark's tasks, on Arrow and Polars."""
