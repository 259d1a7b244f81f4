"""What `verify` proves of a keyed table."""
