"""The interface of all decoders, and the choice of a job's decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, assert_never

import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.decode.garmadon.events import GarmadonDecoder
from penstock.flow.decode.json.new_fields import NO_PATHS, Paths
from penstock.flow.decode.json.rows import JsonDecoder
from penstock.flow.decode.outcome import gathered, open_records
from penstock.flow.decode.protobuf.reader import ProtobufDecoder, check_fields
from penstock.flow.rows import Decoded
from penstock.job.kafka_types import RAW_SCHEMA
from penstock.job.messages import garmadon_schema, message_schema
from penstock.job.spec import DecodeSpec, MessageName, Payload, Policies, TombstonePolicy


class Decoder(Protocol):
    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """Decode the records of one batch; bad rows are returned, whatever the policy for them."""


@dataclass(frozen=True, slots=True)
class RawDecoder:
    """Decodes nothing: the payload of a record is its only column."""

    schema: pa.Schema
    payload: Payload
    tombstone: TombstonePolicy

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        records = open_records(batch, self.payload, self.tombstone)
        columns = pa.RecordBatch.from_arrays([records.values], schema=self.schema)
        return gathered(batch, columns, records.rows, records.errors, records, {})


def decoder_for(
    decode: DecodeSpec,
    schema: pa.Schema,
    on: Policies,
    message: MessageName | None = None,
    reserved: frozenset[str] = frozenset(),
    rare: Paths = NO_PATHS,
) -> Decoder:
    """The decoder of a job, or of one of its types; raises `UserError` if it cannot produce the schema.

    `message` is that of the type, where types have different ones. `reserved` are names in lower case that no
    new field may have, `rare` those that get no column. The decoder can be pickled.
    """
    options = (decode.defaults, decode.payload, on.tombstone)
    match decode.format:
        case "raw":
            if schema.names != RAW_SCHEMA.names or schema.types != RAW_SCHEMA.types:
                raise UserError("the schema of raw records is one binary field, value")
            return RawDecoder(schema, decode.payload, on.tombstone)
        case "json":
            if not len(schema):
                raise UserError("the schema has no fields", hint="name at least one field of the records")
            return JsonDecoder(schema, decode.payload, on.tombstone, on.new_column, reserved, rare)
        case "protobuf":
            named = _named(message or decode.message, "message")
            check_fields(schema, message_schema(decode.descriptors, named), named)
            return ProtobufDecoder(schema, decode.descriptors, named, *options)
        case "garmadon":
            body, header = _named(message or decode.message, "message"), _named(decode.header, "header")
            check_fields(schema, garmadon_schema(decode.descriptors, header, body), body)
            return GarmadonDecoder(schema, decode.descriptors, header, body, *options, decode.uri_names)
        case "telegraf" | "influx":
            raise UserError(f"decode {decode.format} gives points of series, not rows")
        case _:
            assert_never(decode.format)


def _named(message: MessageName | None, key: str) -> MessageName:
    if message is None:
        raise UserError(f"decode.{key} is missing: without it no record can be read")
    return message
