"""Serialised messages into columns, the bad ones apart; and the decoder of records that are messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from penstock.errors import UserError
from penstock.flow.decode.misfit import MisfitError, clipped
from penstock.flow.decode.outcome import Records, gathered, open_records
from penstock.flow.decode.protobuf.columns import column_readers, read_columns
from penstock.flow.decode.protobuf.wire import NotPlainError, wire_reader
from penstock.flow.rows import Decoded, rows_without
from penstock.job.messages import find_message
from penstock.job.schema import job_type_name
from penstock.job.spec import Defaults, MessageName, Payload, TombstonePolicy

_NAMES_CHARACTERS_MAX = 120
_PIECE_VALUES = 4096
"""Messages that live at the same time: so few stay in the processor's cache, which makes their fields half as dear."""

ReadColumns = Callable[[Sequence[Message]], list[pa.Array]]
"""Messages into the columns of a schema; raises `MisfitError` if one of the messages does not fit."""
ReadWire = Callable[[pa.Array], list[pa.Array]]
"""The same from serialised messages, faster; raises `NotPlainError` if one of them needs the library."""
_READERS_KEPT_MAX = 512


@dataclass(frozen=True, slots=True)
class Reading:
    """Of an array of values: the rows of the good ones in their order, and by number why the others are bad."""

    columns: pa.RecordBatch
    errors: Mapping[int, str]


class MessageReader:
    """Reads messages of one kind; `what` is the part of a record that holds them."""

    def __init__(
        self, what: str, message: Descriptor, schema: pa.Schema, columns: ReadColumns, fast: ReadWire | None = None
    ) -> None:
        self._what = what
        self._name = message.full_name
        self._schema = schema
        self._columns = columns
        self._fast = fast
        self._from_string: Callable[[bytes], Any] = GetMessageClass(message).FromString
        self._has_required = _has_required(message, set())

    def read(self, values: pa.Array) -> Reading:
        """Takes an array of type binary without nulls."""
        if len(values) <= _PIECE_VALUES:
            return self._read_piece(values)
        starts = range(0, len(values), _PIECE_VALUES)
        pieces = [self._read_piece(values.slice(start, _PIECE_VALUES)) for start in starts]
        errors = {
            start + number: error
            for start, piece in zip(starts, pieces, strict=True)
            for number, error in piece.errors.items()
        }
        return Reading(pa.concat_batches([piece.columns for piece in pieces]), errors)

    def _read_piece(self, values: pa.Array) -> Reading:
        if self._fast is not None and len(values):
            try:
                return Reading(pa.RecordBatch.from_arrays(self._fast(values), schema=self._schema), {})
            except NotPlainError:
                pass
        return self._read_exactly(values)

    def _read_exactly(self, values: pa.Array) -> Reading:
        errors: dict[int, str] = {}
        messages = self._parsed(values.to_pylist(), errors)
        try:
            arrays = self._columns(messages)
        except MisfitError:
            numbers, misfits = rows_without(len(values), errors), self._misfits(messages)
            errors.update({numbers[index]: error for index, error in misfits.items()})
            arrays = self._columns([messages[index] for index in rows_without(len(messages), misfits)])
        return Reading(pa.RecordBatch.from_arrays(arrays, schema=self._schema), errors)

    def _parsed(self, values: Sequence[bytes], errors: dict[int, str]) -> list[Message]:
        """The good messages; the others are named in `errors`."""
        try:
            messages = list(map(self._from_string, values))
            if not self._has_required or all(message.IsInitialized() for message in messages):
                return messages
        except DecodeError:
            pass
        good: list[Message] = []
        for number, value in enumerate(values):
            try:
                message = self._from_string(value)
            except DecodeError:
                errors[number] = f"{self._what} is not a message {self._name}"
                continue
            missing = message.FindInitializationErrors() if self._has_required else []
            if missing:
                lacking = clipped(", ".join(missing), _NAMES_CHARACTERS_MAX)
                errors[number] = f"{self._what} is a message {self._name} that lacks {lacking}"
                continue
            good.append(message)
        return good

    def _misfits(self, messages: Sequence[Message]) -> dict[int, str]:
        """What is wrong with each message that does not fit: halving finds it, since they are few."""
        result: dict[int, str] = {}
        waiting = [(0, len(messages))]
        while waiting:
            start, end = waiting.pop()
            try:
                self._columns(messages[start:end])
            except MisfitError as misfit:
                if end - start == 1:
                    result[start] = f"{self._what}: {misfit}"
                    continue
                middle = (start + end) // 2
                waiting += [(start, middle), (middle, end)]
        return result


def decode_values(batch: pa.RecordBatch, records: Records, read: Callable[[pa.Array], Reading]) -> Decoded:
    """Read the records that have a value; a tombstone that is to be a row is null in every column."""
    valid = records.values.is_valid().to_numpy(zero_copy_only=False)
    alive, dead = records.rows[valid], records.rows[~valid]
    reading = read(records.values.drop_null())
    columns, rows = reading.columns, np.delete(alive, list(reading.errors))
    if len(dead):
        both = np.concatenate([rows, dead])
        order = np.argsort(both)
        columns, rows = columns.take(pa.array(order, mask=order >= len(rows))), both[order]
    errors = {int(alive[number]): error for number, error in reading.errors.items()}
    return gathered(batch, columns, rows, {**records.errors, **errors}, records, {})


def _has_required(message: Descriptor, visited: set[str]) -> bool:
    if message.full_name in visited:
        return False
    visited.add(message.full_name)
    return any(
        field.is_required or (field.message_type is not None and _has_required(field.message_type, visited))
        for field in message.fields
    )


@dataclass(frozen=True, slots=True)
class ProtobufDecoder:
    """Decodes the fields that the schema names; travels as bytes and names, the rest is made where it runs."""

    schema: pa.Schema
    descriptors: bytes
    message: MessageName
    defaults: Defaults
    payload: Payload
    tombstone: TombstonePolicy

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        reader = message_reader("value", self.descriptors, self.message, self.schema, self.defaults)
        return decode_values(batch, open_records(batch, self.payload, self.tombstone), reader.read)


@lru_cache(maxsize=_READERS_KEPT_MAX)
def message_reader(
    what: str, descriptors: bytes, message: MessageName, schema: pa.Schema, defaults: Defaults
) -> MessageReader:
    """The reader of those fields of a message that the schema names, in the schema's order."""
    descriptor = find_message(descriptors, message)
    readers = column_readers(descriptor, defaults, schema.names)
    wire = wire_reader(descriptor, schema.names, defaults)
    return MessageReader(what, descriptor, schema, partial(read_columns, readers), wire.read if wire else None)


def check_fields(schema: pa.Schema, offered: pa.Schema, message: MessageName) -> None:
    """Raise `UserError` unless each field of `schema` is one that the message offers."""
    if not len(schema):
        raise UserError(f"the schema names no field of the message {message.name}")
    for field in schema:
        result = offered.field(field.name).type if field.name in offered.names else None
        if result is None:
            raise UserError(f"the message {message.name} has no field {field.name}")
        if result != field.type:
            raise UserError(
                f"the field {field.name} of the message {message.name} is {job_type_name(result)}, "
                f"not {job_type_name(field.type)}"
            )
