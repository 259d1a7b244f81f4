"""The Spark jobs of a portion of a close, and what their tasks do."""
