"""Any coordination record, for properties of the codec."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from penstock.claims.protocol.codec import NUMBER_MAX, PARTITION_NUMBER_MAX, TEXT_CHARACTERS_MAX
from penstock.claims.protocol.records import Beat, Presence, RangeBeat, Record, Who
from penstock.logs.log import Partition


def texts() -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), max_size=TEXT_CHARACTERS_MAX)


_NUMBERS = st.integers(0, NUMBER_MAX)
_PARTITIONS = st.builds(Partition, texts(), texts(), st.integers(0, PARTITION_NUMBER_MAX))
_PRESENCES = st.builds(Presence, st.none() | _NUMBERS, _NUMBERS)
_BEATS = st.builds(Beat, _PARTITIONS, _NUMBERS, st.none() | _NUMBERS, _NUMBERS)
_RANGE_BEATS = st.builds(RangeBeat, _PARTITIONS, _NUMBERS, _NUMBERS)
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "group": texts(),
    "who": st.builds(Who, texts(), texts()),
    "client_id": texts(),
    "pause_id": texts(),
    "reason": texts(),
    "partition": _PARTITIONS,
    "presence": _PRESENCES,
    "beats": st.lists(_BEATS, max_size=3).map(tuple),
    "ranges": st.lists(_RANGE_BEATS, max_size=3).map(tuple),
    "until_at": st.none() | st.floats(-(2.0**52), 2.0**52),
    "at_most_once": st.booleans(),
    "position": _NUMBERS,
    "if_last": _NUMBERS,
}


def records() -> st.SearchStrategy[Record]:
    return st.one_of([_records_of(kind) for kind in get_args(Record)])


def _records_of(kind: type[Record]) -> st.SearchStrategy[Record]:
    named = {name: _FIELDS.get(name, _NUMBERS) for name in kind.__dataclass_fields__}
    return st.builds(kind, **named)
