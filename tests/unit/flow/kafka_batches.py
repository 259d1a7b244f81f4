"""Batches as the reader hands them to the flow inside a task."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.flow.columns.seen_types import NewFields, column_types
from penstock.flow.decode.decoder import decoder_for
from penstock.flow.rows import Decoded
from penstock.job.spec import DecodeSpec, NewColumnPolicy, Payload, Policies, TombstonePolicy

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
WRITTEN_AT_MICROS = 1_714_979_289_000_000
"""2024-05-06T07:08:09Z"""


def kafka_batch(values: Sequence[bytes | None], *, headers: Sequence[object] | None = None) -> pa.RecordBatch:
    """Records of partition 3 of `orders`, with offsets from 100 on."""
    count = len(values)
    columns = {
        "topic": pa.array(["orders"] * count, pa.string()),
        "partition": pa.array([3] * count, pa.int32()),
        "offset": pa.array(range(100, 100 + count), pa.int64()),
        "timestamp": pa.array([WRITTEN_AT_MICROS] * count, pa.timestamp("us", "Etc/UTC")),
        "key": pa.array([b"k%d" % number for number in range(count)], pa.binary()),
        "value": pa.array(values, pa.binary()),
    }
    if headers is not None:
        columns["headers"] = pa.array(headers, HEADERS)
    return pa.RecordBatch.from_pydict(columns)


def decode_json(
    schema: pa.Schema,
    values: Sequence[bytes | None],
    *,
    payload: Payload = "plain",
    tombstone: TombstonePolicy = "filter",
    new_column: NewColumnPolicy = "add",
) -> Decoded:
    """Decode the values and see that nothing is lost, doubled or out of order."""
    batch = kafka_batch(values)
    on = Policies(tombstone=tombstone, new_column=new_column)
    decoder = decoder_for(DecodeSpec("json", payload), schema, on)
    decoded = decoder.decode(batch)
    good, bad = good_offsets(decoded), bad_offsets(decoded)
    assert good == sorted(good)
    assert bad == sorted(bad)
    assert not set(good) & set(bad)
    assert len(good) + len(bad) + decoded.filtered == len(values)
    assert decoded.rows.columns.schema.equals(schema)
    decoded.rows.columns.validate(full=True)
    return decoded


def types_of(fields: NewFields) -> dict[str, pa.DataType]:
    """The types of the columns that new fields would get."""
    return column_types(fields)


def good_offsets(decoded: Decoded) -> list[int]:
    return list(decoded.rows.kafka.column("offset").to_pylist())


def bad_offsets(decoded: Decoded) -> list[int]:
    return list(decoded.bad.kafka.column("offset").to_pylist())


def error_of(schema: pa.Schema, value: bytes | None, new_column: NewColumnPolicy = "add") -> str:
    """The sentence for one bad record, which is the same alone and among good ones."""
    alone = decode_json(schema, [value], new_column=new_column)
    among = decode_json(schema, [b"{}"] * 40 + [value] + [b"{}"] * 40, new_column=new_column)
    assert bad_offsets(alone) == [100]
    assert bad_offsets(among) == [140]
    assert alone.bad.errors.equals(among.bad.errors)
    return str(alone.bad.errors[0].as_py())
