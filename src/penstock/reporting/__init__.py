"""The status of a job as values: the table's side, the same for every kind, and the log's."""
