"""Partials: what the points of a batch add to the finest windows of their series."""
