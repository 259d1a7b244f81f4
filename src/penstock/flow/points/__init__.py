"""Points of metrics: which series a value belongs to, and when it was measured."""
