"""The quarantine of a job: records that could not be written, with the reason."""
