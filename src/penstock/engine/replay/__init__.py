"""Quarantined records, written again."""
