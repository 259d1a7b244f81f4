"""The sections of a job file as pydantic sees them; those of a kind of table come from its room."""
