"""Kafka's timestamps and headers as columns; a row is bad only if it uses one that a column cannot hold."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from penstock.job.kafka_types import HEADERS_TYPE, KAFKA_TYPES

TIME_OUTSIDE = "the record's Kafka timestamp is outside years 1 to 9999"
HEADERS_UNREADABLE = "a header key of the record is not UTF-8"
MICROS_OF_DAY = 86_400_000_000
MICROS_OF_YEAR_1 = -62_135_596_800_000_000
MICROS_OF_YEAR_10000 = 253_402_300_800_000_000


def record_times(kafka: pa.RecordBatch) -> tuple[pa.Array, Mapping[int, str]]:
    """The times of the records, null and named by row where no calendar has them."""
    times = kafka.column("timestamp").cast(KAFKA_TYPES["timestamp"])
    micros = times.cast(pa.int64())
    span = pc.min_max(micros)
    if span["min"].is_valid and MICROS_OF_YEAR_1 <= span["min"].as_py() <= span["max"].as_py() < MICROS_OF_YEAR_10000:
        return times, {}
    outside = pc.or_(pc.less(micros, MICROS_OF_YEAR_1), pc.greater_equal(micros, MICROS_OF_YEAR_10000)).fill_null(False)
    faults = dict.fromkeys(pc.indices_nonzero(outside).to_pylist(), TIME_OUTSIDE)
    return pc.if_else(outside, pa.scalar(None, times.type), times), faults


def record_headers(kafka: pa.RecordBatch) -> tuple[pa.Array, Mapping[int, str]]:
    """The headers of the records, null where the reader could not hand them over; those are named by row."""
    index = kafka.schema.get_field_index("headers")
    if index < 0:
        return pa.nulls(kafka.num_rows, HEADERS_TYPE), {}
    headers = kafka.column(index).cast(HEADERS_TYPE)
    # Kafka has no header without a key: the reader writes one where the client failed.
    unnamed = headers.flatten().field("key").is_null()
    rows = set(pc.list_parent_indices(headers).filter(unnamed).to_pylist())
    if not rows:
        return headers, {}
    readable = pa.array([row not in rows for row in range(len(headers))])
    return pc.if_else(readable, headers, pa.scalar(None, HEADERS_TYPE)), dict.fromkeys(sorted(rows), HEADERS_UNREADABLE)
