"""Payload bytes into columns, a whole Arrow batch at a time."""
