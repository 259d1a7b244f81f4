"""The protobuf decoder: each record is one message, and each field of it a column."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.decode.outcome import open_records
from penstock.flow.decode.protobuf.columns import Defaults, column_readers, read_columns
from penstock.flow.decode.protobuf.reader import MessageReader, decode_values
from penstock.flow.decode.protobuf.wire import wire_reader
from penstock.flow.rows import Decoded
from penstock.job.messages import find_message
from penstock.job.schema import job_type_name
from penstock.job.spec import MessageName, TombstonePolicy, Wrapping

_READERS_KEPT_MAX = 512


@dataclass(frozen=True, slots=True)
class ProtobufDecoder:
    """Decodes the fields that the schema names; travels as bytes and names, the rest is made where it runs."""

    schema: pa.Schema
    descriptors: bytes
    message: MessageName
    defaults: Defaults
    wrapping: Wrapping
    tombstone: TombstonePolicy

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        reader = message_reader("value", self.descriptors, self.message, self.schema, self.defaults)
        return decode_values(batch, open_records(batch, self.wrapping, self.tombstone), reader.read)


@lru_cache(maxsize=_READERS_KEPT_MAX)
def message_reader(
    what: str, descriptors: bytes, message: MessageName, schema: pa.Schema, defaults: Defaults
) -> MessageReader:
    """The reader of those fields of a message that the schema names, in the schema's order."""
    descriptor = find_message(descriptors, message)
    by_name = column_readers(descriptor, defaults, schema.names)
    readers = {name: by_name[name] for name in schema.names}
    wire = wire_reader(descriptor, schema.names, defaults)
    return MessageReader(what, descriptor, schema, partial(read_columns, readers), wire.read if wire else None)


def check_fields(schema: pa.Schema, offered: pa.Schema, message: MessageName) -> None:
    """Raise `UserError` unless each field of `schema` is one that the message offers."""
    if not len(schema):
        raise UserError(f"the schema names no field of the message {message.name}")
    for field in schema:
        found = offered.field(field.name).type if field.name in offered.names else None
        if found is None:
            raise UserError(f"the message {message.name} has no field {field.name}")
        if found != field.type:
            raise UserError(
                f"the field {field.name} of the message {message.name} is {job_type_name(found)}, "
                f"not {job_type_name(field.type)}"
            )
