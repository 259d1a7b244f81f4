"""The JSON decoder."""
