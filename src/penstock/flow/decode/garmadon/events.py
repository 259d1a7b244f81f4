"""The Garmadon decoder: header and body of an event side by side in one flat row, with the envelope's time.

Two bodies are written as Garmadon's own exporter writes them. Of a JVM's statistics it is the section `heap`. In an
access to a file system paths lose the text of the event's uri, the uri loses its port and takes the given name of its
cluster; a target that is not set is an empty path; a source that is not set, or is nothing but the uri, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor

from penstock.flow.decode.garmadon.envelope import open_envelopes
from penstock.flow.decode.misfit import MisfitError, clipped
from penstock.flow.decode.outcome import open_records
from penstock.flow.decode.protobuf.columns import column_readers, read_columns
from penstock.flow.decode.protobuf.reader import MessageReader, Reading, decode_values, message_reader
from penstock.flow.decode.protobuf.wire import wire_reader
from penstock.flow.rows import Decoded, groups
from penstock.job.messages import (
    ENVELOPE_TIME,
    FILE_SYSTEM_FIELDS,
    HEAP_SCHEMA,
    find_message,
    is_file_system,
    is_heap,
    message_schema,
)
from penstock.job.spec import Defaults, MessageName, Payload, TombstonePolicy

_READERS_KEPT_MAX = 512
_SOURCE, _TARGET, _URI = FILE_SYSTEM_FIELDS
_HDFS = "hdfs"
_HEAP_SECTION = "heap"
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_INT64_MAX = 2**63 - 1
_SHOWN_CHARACTERS_MAX = 60


@dataclass(frozen=True, slots=True)
class GarmadonDecoder:
    """Decodes events of one type, those columns that the schema names; travels as bytes and names."""

    schema: pa.Schema
    descriptors: bytes
    header: MessageName
    body: MessageName
    defaults: Defaults
    payload: Payload
    tombstone: TombstonePolicy
    uri_names: Mapping[str, str] = field(default_factory=dict)

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        records = open_records(batch, self.payload, self.tombstone)
        return decode_values(batch, records, self._read)

    def _read(self, values: pa.Array) -> Reading:
        header_reader, body_reader = _readers(
            self.schema, self.descriptors, self.header, self.body, self.defaults, tuple(self.uri_names.items())
        )
        envelopes = open_envelopes(values)
        # A process sends the same header with each of its events: every different one is read once.
        coded = envelopes.headers.dictionary_encode()
        headers = header_reader.read(coded.dictionary)
        bodies = body_reader.read(envelopes.bodies)
        header_of = _places(headers, len(coded.dictionary))[coded.indices.to_numpy()]
        body_of = _places(bodies, len(envelopes.bodies))
        whole = (header_of >= 0) & (body_of >= 0)
        errors = dict(envelopes.errors)
        for event in np.flatnonzero(~whole).tolist():
            error = headers.errors.get(coded.indices[event].as_py()) or bodies.errors[event]
            errors[envelopes.rows[event]] = error
        good = np.flatnonzero(whole)
        times = {ENVELOPE_TIME: envelopes.timestamps.take(pa.array(good))}
        parts = {**_taken(headers, header_of[good]), **_taken(bodies, body_of[good]), **times}
        columns = pa.RecordBatch.from_arrays([parts[name] for name in self.schema.names], schema=self.schema)
        return Reading(columns, errors)


@lru_cache(maxsize=_READERS_KEPT_MAX)
def _readers(
    schema: pa.Schema,
    descriptors: bytes,
    header: MessageName,
    body: MessageName,
    defaults: Defaults,
    uri_names: tuple[tuple[str, str], ...],
) -> tuple[MessageReader, MessageReader]:
    """Of the header and of the body."""
    in_header = frozenset(message_schema(descriptors, header).names)
    of_header = pa.schema([item for item in schema if item.name in in_header])
    of_body = pa.schema([item for item in schema if item.name not in in_header and item.name != ENVELOPE_TIME])
    in_body = _body_reader(descriptors, body, of_body, defaults, dict(uri_names))
    return message_reader("header", descriptors, header, of_header, defaults), in_body


def _body_reader(
    descriptors: bytes, body: MessageName, schema: pa.Schema, defaults: Defaults, uri_names: Mapping[str, str]
) -> MessageReader:
    descriptor = find_message(descriptors, body)
    if is_heap(descriptor):
        return MessageReader("body", descriptor, schema, partial(_heap_columns, schema.names, defaults))
    if not is_file_system(descriptor):
        return message_reader("body", descriptors, body, schema, defaults)
    return _file_system_reader(descriptor, schema, defaults, uri_names)


def _places(reading: Reading, count: int) -> npt.NDArray[np.int64]:
    """For each value that was read its row in the reading; -1 if it was bad."""
    places = np.full(count, -1, np.int64)
    places[np.delete(np.arange(count), list(reading.errors))] = np.arange(count - len(reading.errors))
    return places


def _taken(reading: Reading, places: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    """The columns of a reading, those rows alone."""
    named = zip(reading.columns.schema.names, reading.columns.columns, strict=True)
    if np.array_equal(places, np.arange(reading.columns.num_rows)):
        return dict(named)
    rows = pa.array(places)
    return {name: column.take(rows) for name, column in named}


def _heap_columns(names: Sequence[str], defaults: Defaults, messages: Sequence[Any]) -> list[pa.Array]:
    heaps = [_heap(message) for message in messages]
    if defaults == "null":
        return [pa.array([heap.get(name) or None for heap in heaps], pa.int64()) for name in names]
    return [pa.array([heap.get(name) for heap in heaps], pa.int64()) for name in names]


def _heap(statistics: Any) -> dict[str, int]:
    return {
        item.name: _whole_number(item.name, item.value)
        for section in statistics.section
        if section.name == _HEAP_SECTION
        for item in section.property
        if item.name in HEAP_SCHEMA.names
    }


def _whole_number(name: str, text: str | bytes) -> int:
    number = int(text) if isinstance(text, str) and _WHOLE_NUMBER.fullmatch(text) else _INT64_MAX + 1
    if not -_INT64_MAX - 1 <= number <= _INT64_MAX:
        shown = clipped(str(text), _SHOWN_CHARACTERS_MAX)
        raise MisfitError(f"'{shown}' is not a whole number of 64 bits").inside(f"{_HEAP_SECTION}.{name}")
    return number


def _file_system_reader(
    body: Descriptor, schema: pa.Schema, defaults: Defaults, uri_names: Mapping[str, str]
) -> MessageReader:
    """The reader of those fields of an access that the schema names."""
    names = [*schema.names, *(name for name in FILE_SYSTEM_FIELDS if name not in schema.names)]
    readers = column_readers(body, defaults, names)
    written = partial(_written, schema.names, names, uri_names)
    wire = wire_reader(body, names, defaults)
    fast = None if wire is None else lambda values: written(wire.read(values))
    return MessageReader("body", body, schema, lambda messages: written(read_columns(readers, messages)), fast)


def uniform_uri(uri: str, names: Mapping[str, str]) -> str:
    """A uri without its port, with the given name of its cluster; HDFS if it names no scheme."""
    scheme, separator, cluster = uri.partition("://")
    if not separator:
        return f"{_HDFS}://{names.get(uri, uri)}"
    cluster = cluster.partition(":")[0]
    return f"{scheme}://{names.get(cluster, cluster)}"


def _written(
    requested: Sequence[str], names: Sequence[str], uri_names: Mapping[str, str], sent: Sequence[pa.Array]
) -> list[pa.Array]:
    """The columns `requested` as they are written, of the columns `names` as they were sent."""
    arrays = dict(zip(names, sent, strict=True))
    uris = pc.fill_null(arrays[_URI], "").dictionary_encode()
    source = _cut(arrays[_SOURCE], uris)
    arrays[_SOURCE] = pc.if_else(pc.equal(pc.binary_length(source), 0), arrays[_SOURCE], source)
    arrays[_TARGET] = _cut(pc.fill_null(arrays[_TARGET], ""), uris)
    arrays[_URI] = _decoded(uris, [uniform_uri(uri, uri_names) for uri in uris.dictionary.to_pylist()])
    return [arrays[name] for name in requested]


def _cut(paths: pa.Array, uris: pa.DictionaryArray) -> pa.Array:
    """The paths, each without the text of its uri."""
    different = uris.dictionary.to_pylist()
    if len(different) == 1:
        return _without(paths, different[0])
    # Paths of one uri are brought together, cut at once, and brought back to their places.
    by_uri = list(groups(uris.indices.to_numpy()))
    if not by_uri:
        return paths
    cut = [_without(paths.take(pa.array(rows)), different[code]) for code, rows in by_uri]
    return pa.concat_arrays(cut).take(pa.array(np.argsort(np.concatenate([rows for _, rows in by_uri]))))


def _without(paths: pa.Array, text: str) -> pa.Array:
    return pc.replace_substring(paths, text, "") if text else paths


def _decoded(coded: pa.DictionaryArray, texts: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(coded.indices, pa.array(texts, pa.string())).dictionary_decode()
