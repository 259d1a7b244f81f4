"""Verifies a rollup."""
