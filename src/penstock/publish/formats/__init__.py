"""What published rows look like in a record."""
