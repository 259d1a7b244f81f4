"""A look at a topic: a bounded sample of its records, a profile of them, and a draft of a job file."""
