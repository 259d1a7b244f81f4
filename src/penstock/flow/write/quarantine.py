"""The shape of a quarantined record: where it came from, its bytes, and why it could not be written."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from penstock.flow.rows import BadRows
from penstock.job.kafka_types import HEADERS_TYPE

QUARANTINE_SCHEMA = pa.schema(
    [
        ("job", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("error", pa.string()),
        ("batch", pa.string()),
        ("quarantined_at", pa.timestamp("us", "UTC")),
    ]
)


def quarantine_rows(bad: BadRows, job: str, topic_id: str, batch_id: str) -> pa.RecordBatch:
    """Bad rows in the columns of the quarantine table, which several jobs may share."""
    count = len(bad.errors)
    known = {
        "job": pa.repeat(job, count),
        "topic_id": pa.repeat(topic_id, count),
        "error": bad.errors,
        "batch": pa.repeat(batch_id, count),
        "quarantined_at": pa.repeat(pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC")), count),
    }
    there = {**dict(zip(bad.kafka.schema.names, bad.kafka.columns, strict=True)), **known}
    nothing = pa.nulls(count)
    arrays = [there.get(each.name, nothing).cast(each.type) for each in QUARANTINE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=QUARANTINE_SCHEMA)
