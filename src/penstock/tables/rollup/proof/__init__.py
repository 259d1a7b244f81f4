"""What `verify` proves of a rollup."""
