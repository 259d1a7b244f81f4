"""What a job file may state under `log.kafka`."""
