"""JSON texts of whole columns at once: strings escaped, numbers as short as they can be read back, maps as objects."""

from __future__ import annotations

import msgspec
import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError

_UNSAFE = r'["\\\x00-\x1f]'
"""What a JSON string cannot hold as it is."""


def json_texts(column: pa.ChunkedArray) -> pl.Series:
    """Each value of a column as JSON; null where it is null, or a number that JSON cannot hold."""
    kind = column.type
    if pa.types.is_map(kind):
        return _objects(column)
    values = pl.Series(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return quoted(values).fill_null("null")
    if pa.types.is_integer(kind):
        return values.cast(pl.String).fill_null("null")
    if pa.types.is_floating(kind):
        return number_texts(values)
    if pa.types.is_timestamp(kind):
        return _quoted_as_they_are(_instants(values))
    if pa.types.is_date(kind):
        return _quoted_as_they_are(values.dt.to_string("iso"))
    raise InvariantError(f"a column of {kind} cannot be published as JSON")


def quoted(values: pl.Series) -> pl.Series:
    """Strings as JSON strings; null stays null."""
    unsafe = values.filter(values.str.contains(_UNSAFE)).unique().to_list()
    if not unsafe:
        return '"' + values + '"'
    # Names with quotes or control characters are rare: each of them is escaped once.
    escaped = {text: msgspec.json.encode(text).decode()[1:-1] for text in unsafe}
    return '"' + values.replace(escaped) + '"'


def number_texts(values: pl.Series) -> pl.Series:
    """Floating-point numbers, `.0` kept; null where JSON has no word for them."""
    finite = values.is_finite()
    return values.cast(pl.Float64).cast(pl.String).set(~finite, None).fill_null("null")


def _quoted_as_they_are(values: pl.Series) -> pl.Series:
    return ('"' + values + '"').fill_null("null")


def _instants(values: pl.Series) -> pl.Series:
    return values.dt.to_string("%Y-%m-%dT%H:%M:%S%.6fZ").str.replace(r"\.0+Z$", "Z")


def _objects(column: pa.ChunkedArray) -> pl.Series:
    """Maps of strings as objects, their keys in the order of the map."""
    parts = [_chunk_objects(chunk) for chunk in column.chunks]
    return pl.concat(parts) if parts else pl.Series([], dtype=pl.String)


def _chunk_objects(chunk: pa.MapArray) -> pl.Series:
    pairs = quoted(pl.Series(chunk.keys)) + ":" + quoted(pl.Series(chunk.items)).fill_null("null")
    joined = pl.Series(pa.ListArray.from_arrays(chunk.offsets, pairs.to_arrow())).list.join(",")
    return ("{" + joined + "}").set(pl.Series(chunk.is_null()), "null")
