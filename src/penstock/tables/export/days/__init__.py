"""Event-time days and their markers."""
