"""What the log keeps on disk: topics, partitions, segments, client keys and the positions of jobs."""
