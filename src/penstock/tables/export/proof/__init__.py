"""What `verify` proves of an export."""
