"""The port of all decoders, and the one that a job asks for."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.decode.convert import check_schema
from penstock.flow.decode.json_rows import JsonDecoder
from penstock.flow.decode.raw import RAW_SCHEMA, RawDecoder
from penstock.flow.rows import Decoded
from penstock.job.spec import DecodeSpec, Policies


class Decoder(Protocol):
    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """Decode the rows of one batch of Spark's Kafka source; bad rows are returned, whatever the policy for them."""
        ...


def decoder_for(decode: DecodeSpec, schema: pa.Schema, on: Policies) -> Decoder:
    """The decoder of a job; raises `UserError` if it cannot produce the schema. It can be pickled."""
    if decode.format == "raw":
        if schema.names != RAW_SCHEMA.names or schema.types != RAW_SCHEMA.types:
            raise UserError("the schema of raw records is one binary field, value")
        return RawDecoder(schema, decode.payload, on.tombstone)
    check_schema(schema)
    return JsonDecoder(schema, decode.payload, on.tombstone, on.new_column)
