"""The decoder of InfluxDB's line protocol."""
