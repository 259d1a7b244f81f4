"""What `status` and metrics tell of a rollup."""
