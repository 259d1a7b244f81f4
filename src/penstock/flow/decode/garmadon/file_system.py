"""Accesses to a file system as Garmadon's own exporter writes them.

Paths lose the text of the event's uri, the uri loses its port and takes the given name of its cluster. A target that
is not set is an empty path; a source that is not set, or is nothing but the uri, stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor

from penstock.flow.decode.protobuf.columns import column_readers, read_columns
from penstock.flow.decode.protobuf.reader import MessageReader
from penstock.flow.decode.protobuf.wire import wire_reader
from penstock.flow.rows import groups
from penstock.job.messages import FILE_SYSTEM_FIELDS
from penstock.job.spec import Defaults

_SOURCE, _TARGET, _URI = FILE_SYSTEM_FIELDS
_HDFS = "hdfs"


def file_system_reader(
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
    wanted: Sequence[str], names: Sequence[str], uri_names: Mapping[str, str], sent: Sequence[pa.Array]
) -> list[pa.Array]:
    """The columns `wanted` as they are written, of the columns `names` as they were sent."""
    arrays = dict(zip(names, sent, strict=True))
    uris = pc.fill_null(arrays[_URI], "").dictionary_encode()
    source = _cut(arrays[_SOURCE], uris)
    arrays[_SOURCE] = pc.if_else(pc.equal(pc.binary_length(source), 0), arrays[_SOURCE], source)
    arrays[_TARGET] = _cut(pc.fill_null(arrays[_TARGET], ""), uris)
    arrays[_URI] = _decoded(uris, [uniform_uri(uri, uri_names) for uri in uris.dictionary.to_pylist()])
    return [arrays[name] for name in wanted]


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


def _decoded(coded: pa.DictionaryArray, words: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(coded.indices, pa.array(words, pa.string())).dictionary_decode()
