"""How a job stands, as values: what every kind of table tells, and the log's side of it."""
