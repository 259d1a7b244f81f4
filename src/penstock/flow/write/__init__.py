"""Staged files and what is said of them."""
