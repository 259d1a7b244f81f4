"""Closed windows out to a topic."""
