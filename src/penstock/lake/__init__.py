"""What rooms share to store: folders and object stores, and the log of Delta tables."""
