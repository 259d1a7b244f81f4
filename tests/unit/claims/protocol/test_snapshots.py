"""Snapshots: every released byte is kept, a state survives, and the one furthest in the log counts (RULES M7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.claims.protocol.codec import MalformedError, UnknownVersionError, encode
from penstock.claims.protocol.fold import FOLD_VERSION, apply
from penstock.claims.protocol.records import LeavingGroup, MemberId, RequestedTopic
from penstock.claims.protocol.snapshots import Snapshot, decode_snapshot, encode_snapshot, snapshots_of
from penstock.claims.protocol.state import Claim, GroupState, MemberState, Pause
from penstock.logs.log import Partition
from tests.unit.claims.protocol.random_log import PlannedRecord, log_of, random_plans

GOLDEN = Path(__file__).parents[3] / "golden" / "claims" / "v2" / "Snapshot.json"
ANNA, BERT = MemberId("anna", "5f3a"), MemberId("bert", "77b0")
WEB = Partition("web", "kQ2x", 3)
HOT = Partition("hot", "Zz-1", 0)

SHOP = GroupState(
    next_offset=42,
    claims={
        WEB: Claim(token=9, owner=ANNA, held=True, last=41, position=1000, claimed=1200, lag=25, seeks=2),
        HOT: Claim(
            token=2,
            owner=BERT,
            held=False,
            last=40,
            given_up=((100, 200), (300, 310)),
            given_up_before=7,
            freed_from="bert",
        ),
    },
    members={
        "anna": MemberState(ANNA, 41, True, (RequestedTopic("web", "kQ2x", ((0, 4),)),)),
        "bert": MemberState(BERT, 12, present=False),
    },
    pauses={"p-1": Pause("anna", 1700000000.5, "Wartung über Nacht"), "p-2": Pause("bert", None, "")},
    heartbeat_seconds=10.0,
    target={"anna": (WEB, HOT)},
    changed=30,
    balanced=35,
)
RELEASED = Snapshot("n7c-topic", "shop", 1700000001.25, SHOP, epoch=4, pauses_left={"p-1": 59.25})


def changed(**content: Any) -> bytes:
    return json.dumps({**json.loads(encode_snapshot(RELEASED)), **content}).encode()


def at(offset: int, group: str = "shop") -> bytes:
    return encode_snapshot(Snapshot("t", group, 1.0, GroupState(offset)))


# version 2 is what is on disk already


def test_version_2_is_written_byte_for_byte() -> None:
    assert encode_snapshot(RELEASED) == GOLDEN.read_bytes()


def test_version_2_is_still_read() -> None:
    assert decode_snapshot(GOLDEN.read_bytes(), "shop") == RELEASED


# a snapshot restores the fold


@given(random_plans(), st.integers(0, 100))
def test_reading_from_a_snapshot_gives_the_same_state(planned_records: list[PlannedRecord], cut: int) -> None:
    steps = log_of(planned_records)
    before = steps[min(cut, len(steps) - 1)].before
    restored = decode_snapshot(encode_snapshot(Snapshot("t", "shop", 1.0, before)), "shop").state
    assert restored == before
    for step in steps[cut:]:
        assert apply(restored, step.offset, step.record, float(step.offset)) == step.refusal
        assert restored == step.after


def test_no_position_differs_from_position_zero() -> None:
    for position in (None, 0):
        group = GroupState(1, claims={WEB: Claim(token=1, owner=ANNA, held=True, last=0, position=position)})
        restored = decode_snapshot(encode_snapshot(replace(RELEASED, state=group)), "shop").state
        assert restored.claim(WEB).position == position


def test_a_snapshot_of_an_older_version_is_refused_with_a_hint() -> None:
    with pytest.raises(UnknownVersionError, match=f"fold {FOLD_VERSION - 1} instead of {FOLD_VERSION}") as raised:
        decode_snapshot(changed(fold=FOLD_VERSION - 1), "shop")
    assert "claims.topic" in raised.value.hint


# which ones are a group's


def test_unreadable_snapshots_and_those_of_other_groups_are_skipped() -> None:
    damaged = json.dumps({"penstock": 2, "kind": "Snapshot", "fold": FOLD_VERSION}).encode()
    record = encode(LeavingGroup(who=ANNA, seq=1), "shop", 8)
    snapshots = snapshots_of("shop", [None, b"", b"banana", damaged, record, at(7), at(9, "kitchen"), at(5)])
    assert [item.state.next_offset for item in snapshots] == [7, 5]


@pytest.mark.parametrize(
    "content", [{"penstock": 3}, {"penstock": 1}, {"fold": FOLD_VERSION + 1}, {"fold": "x"}], ids=str
)
def test_a_snapshot_of_another_version_stops_the_reader_as_the_group_is_not_new(content: dict[str, Any]) -> None:
    with pytest.raises(UnknownVersionError):
        snapshots_of("shop", [at(7), changed(**content)])


@pytest.mark.parametrize("name", ["topic_id", "group", "appended_at", "next_offset", "claims", "members", "target"])
def test_no_field_may_be_missing(name: str) -> None:
    body = json.loads(encode_snapshot(RELEASED))
    del body[name]
    with pytest.raises(MalformedError):
        decode_snapshot(json.dumps(body).encode(), "shop")


@pytest.mark.parametrize("content", [None, "x", {"shop": {}}, [[1]]], ids=repr)
@pytest.mark.parametrize("name", ["next_offset", "claims", "members"])
def test_an_invalid_field_is_a_damaged_snapshot(name: str, content: object) -> None:
    with pytest.raises(MalformedError):
        decode_snapshot(changed(**{name: content}), "shop")


@given(st.integers(0, len(encode_snapshot(RELEASED)) - 1))
def test_a_truncated_snapshot_is_skipped(size: int) -> None:
    assert snapshots_of("shop", [encode_snapshot(RELEASED)[:size]]) == []
