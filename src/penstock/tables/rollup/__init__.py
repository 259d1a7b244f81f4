"""The kind `rollup`: points of metrics, aggregated in event-time windows."""
