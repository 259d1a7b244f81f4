"""The port of all decoders, and the one that a job asks for."""

from __future__ import annotations

from typing import Protocol, assert_never

import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.decode.garmadon.events import GarmadonDecoder, check_garmadon
from penstock.flow.decode.json.convert import check_schema
from penstock.flow.decode.json.loose_text import loosened
from penstock.flow.decode.json.rows import JsonDecoder
from penstock.flow.decode.protobuf.rows import ProtobufDecoder, check_protobuf
from penstock.flow.decode.raw import RAW_SCHEMA, RawDecoder
from penstock.flow.rows import Decoded
from penstock.job.spec import DecodeSpec, MessageName, MixedTypesPolicy, Policies


class Decoder(Protocol):
    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """Decode the records of one batch; bad rows are returned, whatever the policy for them."""
        ...


def decoder_for(
    decode: DecodeSpec,
    schema: pa.Schema,
    on: Policies,
    message: MessageName | None = None,
    stated: pa.Schema | None = None,
) -> Decoder:
    """The decoder of a job, or of one of its types; raises `UserError` if it cannot produce the schema.

    `message` is that of the type, where types have different ones. `stated` are the fields that the job file states:
    only others may take numbers as text; None if it states them all. The decoder can be pickled.
    """
    match decode.format:
        case "raw":
            if schema.names != RAW_SCHEMA.names or schema.types != RAW_SCHEMA.types:
                raise UserError("the schema of raw records is one binary field, value")
            return RawDecoder(schema, decode.wrapping, on.tombstone)
        case "json":
            check_schema(schema)
            loose = on.mixed_types is MixedTypesPolicy.TEXT and stated is not None
            texts = loosened(schema, stated) if loose else schema
            return JsonDecoder(schema, decode.wrapping, on.tombstone, on.new_column, texts)
        case "protobuf":
            return _protobuf(decode, schema, on, _named(message or decode.message, "message"))
        case "garmadon":
            return _garmadon(decode, schema, on, _named(message or decode.message, "message"))
        case _:
            assert_never(decode.format)


def _protobuf(decode: DecodeSpec, schema: pa.Schema, on: Policies, message: MessageName) -> Decoder:
    check_protobuf(schema, decode.descriptors, message)
    return ProtobufDecoder(schema, decode.descriptors, message, decode.defaults, decode.wrapping, on.tombstone)


def _garmadon(decode: DecodeSpec, schema: pa.Schema, on: Policies, body: MessageName) -> Decoder:
    header = _named(decode.header, "header")
    check_garmadon(schema, decode.descriptors, header, body)
    return GarmadonDecoder(
        schema, decode.descriptors, header, body, decode.defaults, decode.wrapping, on.tombstone, decode.uri_names
    )


def _named(message: MessageName | None, key: str) -> MessageName:
    if message is None:
        raise UserError(f"decode.{key} is missing: without it no record can be read")
    return message
