"""Any coordination record, for properties of the codec."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from penstock.claims.protocol.codec import PARTITION_NUMBER_MAX
from penstock.claims.protocol.records import (
    NUMBER_MAX,
    TEXT_CHARACTERS_MAX,
    Beat,
    ClaimRequest,
    MemberId,
    Record,
    RequestedTopic,
)
from penstock.logs.log import Partition


def texts() -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), max_size=TEXT_CHARACTERS_MAX)


_NUMBERS = st.integers(0, NUMBER_MAX)
_SECONDS = st.floats(0.001, 2.0**31)
_PARTITIONS = st.builds(Partition, texts(), texts(), st.integers(0, PARTITION_NUMBER_MAX))
_BEATS = st.builds(Beat, _PARTITIONS, _NUMBERS, st.none() | _NUMBERS, _NUMBERS, _NUMBERS)
_SPANS = st.lists(st.tuples(_NUMBERS, _NUMBERS), max_size=3).map(tuple)
_REQUESTS = st.builds(ClaimRequest, _PARTITIONS, _NUMBERS, _NUMBERS)
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "who": st.builds(MemberId, texts(), texts()),
    "client_id": texts(),
    "pause_id": texts(),
    "reason": texts(),
    "partition": _PARTITIONS,
    "partitions": st.lists(_PARTITIONS, max_size=3).map(tuple),
    "heartbeat_seconds": _SECONDS,
    "wants": st.lists(st.builds(RequestedTopic, texts(), texts(), _SPANS), max_size=3).map(tuple),
    "beats": st.lists(_BEATS, max_size=3).map(tuple),
    "requests": st.lists(_REQUESTS, max_size=3).map(tuple),
    "for_seconds": st.none() | _SECONDS,
    "if_last": _NUMBERS,
}


def records() -> st.SearchStrategy[Record]:
    return st.one_of([_records_of(kind) for kind in get_args(Record)])


def _records_of(kind: type[Record]) -> st.SearchStrategy[Record]:
    named = {name: _FIELDS.get(name, _NUMBERS) for name in kind.__struct_fields__}
    return st.builds(kind, **named)
