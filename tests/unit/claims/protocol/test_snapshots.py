"""Snapshots: every released byte is kept, a state survives, and the one furthest in the log counts (RULES M7)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.claims.protocol.codec import MalformedError, encode
from penstock.claims.protocol.fold import FOLD_VERSION, apply
from penstock.claims.protocol.records import LeavingGroup, Presence, Record, Who
from penstock.claims.protocol.snapshots import Snapshot, decode_snapshot, encode_snapshot, newest
from penstock.claims.protocol.state import Claim, Group, Lease, LogState, MemberState, Pause, Ranges
from penstock.logs.log import Partition
from tests.unit.claims.protocol.any_records import records

GOLDEN = Path(__file__).parents[3] / "golden" / "claims" / "v1" / "Snapshot.json"
ANNA, BERT = Who("anna", "5f3a"), Who("bert", "77b0")
WEB = Partition("web", "kQ2x", 3)
HOT = Partition("hot", "Zz-1", 0)

SHARED = Ranges(
    next=900,
    leases=(
        Lease(start=500, end=700, lease=31, last=40, owner=ANNA, attempts=2),
        Lease(start=700, end=900, lease=33, last=38, owner=None, done=True),
    ),
    at_most_once=True,
)
SHOP = Group(
    claims={
        WEB: Claim(token=9, owner=ANNA, held=True, last=41, position=1000, claimed=1200, lag=25),
        HOT: Claim(token=2, owner=BERT, held=False, last=40, ranges=SHARED, given_up=((100, 200), (300, 310))),
    },
    members={
        "anna": MemberState(ANNA, 41, True, Presence(4, 1200)),
        "bert": MemberState(BERT, 12, present=False),
    },
    pauses={"p-1": Pause("anna", 1700000000.5, "Wartung über Nacht"), "p-2": Pause("bert", None, "")},
)
RELEASED = Snapshot("n7c-topic", 5, 1700000001.25, LogState(42, {"shop": SHOP, "empty": Group()}))


def changed(**content: Any) -> bytes:
    return json.dumps({**json.loads(encode_snapshot(RELEASED)), **content}).encode()


def at(offset: int, topic_id: str = "t", place: int = 0) -> bytes:
    return encode_snapshot(Snapshot(topic_id, place, 1.0, LogState(offset)))


# version 1 is what is on disk already


def test_version_1_is_written_byte_for_byte() -> None:
    assert encode_snapshot(RELEASED) == GOLDEN.read_bytes()


def test_version_1_is_still_read() -> None:
    assert decode_snapshot(GOLDEN.read_bytes()) == RELEASED


# whatever was folded is there again


def folded(said: list[Record]) -> LogState:
    state = LogState()
    for offset, record in enumerate(said):
        state, _ = apply(state, offset, record)
    return state


@given(st.lists(records(), max_size=8), st.lists(records(), max_size=4))
def test_who_reads_on_from_a_snapshot_comes_to_the_same_state(before: list[Record], after: list[Record]) -> None:
    whole = folded(before)
    restored = decode_snapshot(encode_snapshot(Snapshot("t", 0, 1.0, whole))).state
    assert restored == whole
    for offset, record in enumerate(after, len(before)):
        whole, refusal = apply(whole, offset, record)
        restored, same_refusal = apply(restored, offset, record)
        assert (restored, same_refusal) == (whole, refusal)


def test_a_position_of_none_is_not_a_position_of_zero() -> None:
    for position in (None, 0):
        group = Group(claims={WEB: Claim(token=1, owner=ANNA, held=True, last=0, position=position)})
        snapshot = replace(RELEASED, state=LogState(1, {"shop": group}))
        assert decode_snapshot(encode_snapshot(snapshot)).state.group("shop").claim(WEB).position == position


# which one counts


def test_m7_the_snapshot_with_the_highest_event_position_counts_however_late_another_was_written() -> None:
    found = newest([at(10), at(900), at(500)], "t", 0)
    assert found is not None
    assert found.state.next_offset == 900


def test_snapshots_of_another_life_or_another_place_do_not_count() -> None:
    found = newest([at(10), at(900, topic_id="former"), at(901, place=1)], "t", 0)
    assert found is not None
    assert found.state.next_offset == 10
    assert newest([at(900, topic_id="former")], "t", 0) is None


def test_what_cannot_be_read_is_passed_over() -> None:
    newer = json.dumps({"penstock": 2, "kind": "Snapshot"}).encode()
    damaged = json.dumps({"penstock": 1, "kind": "Snapshot", "fold": FOLD_VERSION}).encode()
    record = encode(LeavingGroup(group="shop", who=ANNA, seq=1), 8)
    found = newest([None, b"", b"banana", newer, damaged, record, at(7)], "t", 0)
    assert found is not None
    assert found.state.next_offset == 7


def test_nothing_at_all_is_no_snapshot() -> None:
    assert newest([], "t", 0) is None


def test_a_snapshot_of_another_fold_is_not_used() -> None:
    with pytest.raises(MalformedError):
        decode_snapshot(changed(fold=FOLD_VERSION + 1))


@pytest.mark.parametrize("name", ["topic_id", "place", "appended_at", "next_offset", "groups"])
def test_no_field_may_be_missing(name: str) -> None:
    body = json.loads(encode_snapshot(RELEASED))
    del body[name]
    with pytest.raises(MalformedError):
        decode_snapshot(json.dumps(body).encode())


@pytest.mark.parametrize("content", [None, [], "x", {"shop": {}}, 1e400], ids=repr)
@pytest.mark.parametrize("name", ["place", "next_offset", "groups"])
def test_a_field_that_cannot_be_is_a_damaged_snapshot(name: str, content: object) -> None:
    with pytest.raises(MalformedError):
        decode_snapshot(changed(**{name: content}))


@given(st.integers(0, len(encode_snapshot(RELEASED)) - 1))
def test_a_truncated_snapshot_is_passed_over(size: int) -> None:
    assert newest([encode_snapshot(RELEASED)[:size]], RELEASED.topic_id, RELEASED.place) is None
