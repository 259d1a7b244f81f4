"""The types of Kafka's metadata of a record."""

from __future__ import annotations

import pyarrow as pa

from penstock.job.expressions import KAFKA_NAMES, KafkaName

HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
"""A list, not a map: a record may carry the same header several times."""

RECORD_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)
"""A record as tasks get it from any log."""

RAW_SCHEMA = pa.schema([("value", pa.binary())])
"""A row of a job that decodes nothing."""

KAFKA_TYPES: dict[KafkaName, pa.DataType] = {name: RECORD_SCHEMA.field(name).type for name in KAFKA_NAMES}


def utf8(value: bytes | None) -> str | None:
    """Bytes of a record as text; None if there are none, or if they are not UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
