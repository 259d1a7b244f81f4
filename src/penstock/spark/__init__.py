"""Spark's session and JVM, its jars, and what its failures mean."""
