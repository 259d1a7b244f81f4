"""Arrays of metrics in one line, cut apart for the fast path.

A cut needs no proof: where every part is read as a metric, the array of them is valid too.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.points.spans import Integers, Mask, Spans

_BATCH, _BATCH_END = '{"metrics":[', "]}"
_ARRAY, _ARRAY_END = "[", "]"
_BETWEEN = b"},{"


def unpacked(lines: Spans, rows: Integers) -> tuple[Spans, Integers]:
    """Lines with one metric each, where arrays and `{"metrics": [...]}` were cut apart, and the record of each line."""
    arrays, batches = _between(lines, _ARRAY, _ARRAY_END), _between(lines, _BATCH, _BATCH_END)
    packed = arrays | batches
    if not packed.any():
        return lines, rows
    starts = lines.starts + arrays * len(_ARRAY) + batches * len(_BATCH)
    ends = lines.ends - arrays * len(_ARRAY_END) - batches * len(_BATCH_END)
    cuts, owners = _cuts(Spans(lines.data, starts, ends), packed)
    counts = np.bincount(owners, minlength=len(lines)) + 1
    all_starts = np.sort(np.concatenate([starts, cuts + 2]), kind="stable")
    all_ends = np.sort(np.concatenate([cuts + 1, ends]), kind="stable")
    return Spans(lines.data, all_starts, all_ends), np.repeat(rows, counts)


def _between(lines: Spans, prefix: str, suffix: str) -> Mask:
    """Which lines begin and end so, with something between."""
    data = lines.bytes
    found = lines.ends - lines.starts > len(prefix) + len(suffix)
    # The last byte of a prefix tells most lines apart, before any text is cut.
    found[found] = data[lines.starts[found] + len(prefix) - 1] == ord(prefix[-1])
    chosen = lines.where(found)
    if len(chosen):
        first = Spans(lines.data, chosen.starts, chosen.starts + len(prefix))
        last = Spans(lines.data, chosen.ends - len(suffix), chosen.ends)
        found[found] = _equal(first, prefix) & _equal(last, suffix)
    return found


def _equal(spans: Spans, text: str) -> Mask:
    same: Mask = pc.equal(spans.texts(), pa.scalar(text)).to_numpy(zero_copy_only=False)
    return same


def _cuts(lines: Spans, packed: Mask) -> tuple[Integers, Integers]:
    """Where packed lines hold a comma between two objects, by the place before it, and the number of the line."""
    data = lines.bytes
    found = data[: -len(_BETWEEN) + 1] == _BETWEEN[0]
    for index in range(1, len(_BETWEEN)):
        found &= data[index : len(data) - len(_BETWEEN) + 1 + index] == _BETWEEN[index]
    places = np.flatnonzero(found)
    owners = np.searchsorted(lines.starts, places, side="right") - 1
    inside = (owners >= 0) & (places + len(_BETWEEN) <= lines.ends[owners]) & packed[owners]
    return places[inside], owners[inside]
