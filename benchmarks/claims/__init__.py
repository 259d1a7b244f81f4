"""`bench claims`: many members share many partitions, against the consumer groups of Kafka."""
