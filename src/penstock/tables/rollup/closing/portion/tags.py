"""Tags as the table of closed windows has them: maps, from the JSON texts of partials."""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

TAGS = pa.map_(pa.string(), pa.string())
_decode_tags = msgspec.json.Decoder(dict[str, str]).decode


def tags_of(texts: pl.Series) -> pa.Array:
    """The tags of canonical JSON texts, as maps."""
    if texts.str.contains("\\", literal=True).any():
        return pa.array([list(_decode_tags(each).items()) for each in texts], TAGS)
    return _plain_tags(texts)


def _plain_tags(texts: pl.Series) -> pa.Array:
    """Of texts without escapes: a quote is then never part of a key or a value, which stand between every two."""
    pieces = texts.str.split('"')
    lengths = pieces.list.len().to_numpy().astype(np.int64)
    flat = pieces.explode()
    starts = np.cumsum(lengths) - lengths
    place = (np.arange(len(flat), dtype=np.int64) - np.repeat(starts, lengths)) % 4
    keys, values = flat.gather(np.flatnonzero(place == 1)), flat.gather(np.flatnonzero(place == 3))
    offsets = np.concatenate(([0], np.cumsum(lengths // 4))).astype(np.int32)
    strings = (each.to_arrow().cast(pa.string()) for each in (keys, values))
    return pa.MapArray.from_arrays(pa.array(offsets), *strings)
