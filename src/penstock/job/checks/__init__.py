"""What cannot be right in a job file, section by section."""
