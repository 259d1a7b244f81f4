"""Serialised messages into columns, the bad ones told apart; and the decoder of records that are messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from penstock.errors import UserError
from penstock.flow.decode.misfit import MisfitError, clipped
from penstock.flow.decode.outcome import Records, gathered, open_records
from penstock.flow.decode.protobuf.columns import column_readers, read_columns
from penstock.flow.decode.protobuf.wire import NotPlainError, wire_reader
from penstock.flow.rows import Decoded
from penstock.job.messages import find_message
from penstock.job.schema import job_type_name
from penstock.job.spec import Defaults, MessageName, TombstonePolicy, Wrapping

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
    """Of an array of values: the rows of the good ones, by their ascending `numbers`, and why the others are bad."""

    columns: pa.RecordBatch
    numbers: Sequence[int]
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
        columns: list[pa.RecordBatch] = []
        numbers: list[int] = []
        errors: dict[int, str] = {}
        for start in range(0, len(values), _PIECE_VALUES):
            piece = self._read_piece(values.slice(start, _PIECE_VALUES))
            columns.append(piece.columns)
            numbers += [start + number for number in piece.numbers]
            errors.update({start + number: error for number, error in piece.errors.items()})
        return Reading(pa.concat_batches(columns), numbers if errors else range(len(values)), errors)

    def _read_piece(self, values: pa.Array) -> Reading:
        if self._fast is not None and len(values):
            try:
                arrays = self._fast(values)
            except NotPlainError:
                return self._read_exactly(values)
            return Reading(pa.RecordBatch.from_arrays(arrays, schema=self._schema), range(len(values)), {})
        return self._read_exactly(values)

    def _read_exactly(self, values: pa.Array) -> Reading:
        errors: dict[int, str] = {}
        numbers, messages = self._parsed(values.to_pylist(), errors)
        try:
            arrays = self._columns(messages)
        except MisfitError:
            misfits = self._misfits(messages)
            errors.update({numbers[index]: error for index, error in misfits.items()})
            good = [index for index in range(len(messages)) if index not in misfits]
            numbers = [numbers[index] for index in good]
            arrays = self._columns([messages[index] for index in good])
        return Reading(pa.RecordBatch.from_arrays(arrays, schema=self._schema), numbers, errors)

    def _parsed(self, values: Sequence[bytes], errors: dict[int, str]) -> tuple[Sequence[int], Sequence[Message]]:
        try:
            messages = list(map(self._from_string, values))
        except DecodeError:
            return self._parsed_singly(values, errors)
        if self._has_required and not all(message.IsInitialized() for message in messages):
            return self._parsed_singly(values, errors)
        return range(len(values)), messages

    def _parsed_singly(self, values: Sequence[bytes], errors: dict[int, str]) -> tuple[list[int], list[Message]]:
        good: dict[int, Message] = {}
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
            good[number] = message
        return list(good), list(good.values())

    def _misfits(self, messages: Sequence[Message]) -> dict[int, str]:
        """What is wrong with each message that does not fit: halving finds it, since they are few."""
        found: dict[int, str] = {}
        waiting = [(0, len(messages))]
        while waiting:
            start, end = waiting.pop()
            try:
                self._columns(messages[start:end])
            except MisfitError as misfit:
                if end - start == 1:
                    found[start] = f"{self._what}: {misfit}"
                    continue
                middle = (start + end) // 2
                waiting += [(start, middle), (middle, end)]
        return found


def decode_values(batch: pa.RecordBatch, records: Records, read: Callable[[pa.Array], Reading]) -> Decoded:
    """Read the records that have a value; a tombstone that is to be a row is null in every column."""
    if records.values.null_count:
        return _beside_tombstones(batch, records, read)
    reading = read(records.values)
    rows = records.rows if not reading.errors else [records.rows[number] for number in reading.numbers]
    errors = {records.rows[number]: error for number, error in reading.errors.items()}
    return gathered(batch, reading.columns, rows, {**records.errors, **errors}, records, {})


def _beside_tombstones(batch: pa.RecordBatch, records: Records, read: Callable[[pa.Array], Reading]) -> Decoded:
    alive = pc.indices_nonzero(records.values.is_valid()).to_pylist()
    reading = read(records.values.drop_null())
    line_of: dict[int, int | None] = {alive[number]: line for line, number in enumerate(reading.numbers)}
    line_of.update(dict.fromkeys(pc.indices_nonzero(records.values.is_null()).to_pylist()))
    places = sorted(line_of)
    columns = reading.columns.take(pa.array([line_of[place] for place in places], pa.int64()))
    rows = [records.rows[place] for place in places]
    errors = {records.rows[alive[number]]: error for number, error in reading.errors.items()}
    return gathered(batch, columns, rows, {**records.errors, **errors}, records, {})


def _has_required(message: Descriptor, seen: set[str]) -> bool:
    if message.full_name in seen:
        return False
    seen.add(message.full_name)
    return any(
        field.is_required or (field.message_type is not None and _has_required(field.message_type, seen))
        for field in message.fields
    )


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
