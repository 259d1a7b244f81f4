"""The write step: one Spark job per batch."""
