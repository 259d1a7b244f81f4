"""Offset-addressed logs."""
