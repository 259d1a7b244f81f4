"""The sections of an export's job file."""
