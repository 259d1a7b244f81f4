"""The decoder of Garmadon events."""
