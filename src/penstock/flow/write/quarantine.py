"""Quarantined records: their shape, and why they could not be written, counted by kind."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.rows import BadRows
from penstock.flow.write.manifest import PartitionKey, Reason
from penstock.job.kafka_types import RECORD_SCHEMA

_TOPIC, *_RECORD = ((item.name, item.type) for item in RECORD_SCHEMA)
QUARANTINE_SCHEMA = pa.schema(
    [
        ("job", pa.string()),
        _TOPIC,
        ("topic_id", pa.string()),
        *_RECORD,
        ("error", pa.string()),
        ("batch", pa.string()),
        ("quarantined_at", pa.timestamp("us", "UTC")),
    ]
)
KINDS_MAX = 50
"""Kinds that a task or a batch distinguishes; further ones count as one."""
OTHER_KIND = "other errors"

# In this order: after a value's kind comes the value, and a quoted text may hold numbers and dates.
_VARYING = (
    (r"(?s), found (null|boolean|number|string|array|object).*", r", found \1"),
    (r'"(?:[^"\\]|\\.)*"', '"…"'),
    (r"\d{4}-\d\d-\d\d(?:T[0-9:.]+Z?)?", "…"),
    (r"([\s\[:=])-?\d+\b", r"\1N"),
)


def quarantine_rows(bad: BadRows, job: str, topic_id: str, batch_id: str) -> pa.RecordBatch:
    """Bad rows in the columns of the quarantine table."""
    count = len(bad.errors)
    constants = {
        "job": pa.repeat(job, count),
        "topic_id": pa.repeat(topic_id, count),
        "error": bad.errors,
        "batch": pa.repeat(batch_id, count),
        "quarantined_at": pa.repeat(pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC")), count),
    }
    columns = {**dict(zip(bad.kafka.schema.names, bad.kafka.columns, strict=True)), **constants}
    nothing = pa.nulls(count)
    arrays = [columns.get(item.name, nothing).cast(item.type) for item in QUARANTINE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=QUARANTINE_SCHEMA)


def error_kinds(errors: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Errors without what is different in each record; the columns, and types such as `decimal(10,2)`, stay."""
    kinds = pc.fill_null(errors, "")
    for pattern, replacement in _VARYING:
        kinds = pc.replace_substring_regex(kinds, pattern, replacement)
    return kinds


def reasons_of(partition: PartitionKey, bad: BadRows) -> list[Reason]:
    """The kinds of errors of bad rows, each with the first of its records."""
    rows = pa.table({"kind": error_kinds(bad.errors), "row": pa.array(np.arange(len(bad.errors)))})
    result = rows.group_by("kind").aggregate([("row", "min"), ("row", "count")]).to_pylist()
    return [Reason(item["kind"], item["row_count"], error_text(partition, bad, item["row_min"])) for item in result]


def error_text(partition: PartitionKey, bad: BadRows, row: int) -> str:
    """The place of a bad row in the log, and why it is bad."""
    topic, number = partition
    return f"{topic}/{number} offset {bad.kafka.column('offset')[row].as_py()}: {bad.errors[row].as_py()}"


def merged_reasons(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Each kind once, the most frequent first; of a bounded number of kinds."""
    by_kind: dict[str, Reason] = {}
    for reason in reasons:
        kind = reason.kind if reason.kind in by_kind or len(by_kind) < KINDS_MAX else OTHER_KIND
        named = Reason(kind, reason.count, reason.example)
        by_kind[kind] = by_kind[kind] + named if kind in by_kind else named
    return tuple(sorted(by_kind.values(), key=lambda item: (-item.count, item.kind)))
