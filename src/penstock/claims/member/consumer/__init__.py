"""The consumer library: records of the claimed partitions for any Python program, without Spark."""
