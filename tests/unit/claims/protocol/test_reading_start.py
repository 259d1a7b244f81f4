"""Where a reader starts, and what it takes for a loss (RULES M7)."""

from __future__ import annotations

from penstock.claims.protocol.snapshots import RECREATED, ReadingStart, Snapshot, reading_start
from penstock.claims.protocol.state import GroupState, MemberState
from tests.support.coordination import ANNA

PRESENT = {"anna": MemberState(ANNA, 0)}
ABSENT = {"anna": MemberState(ANNA, 0, present=False)}


def at(offset: int, topic_id: str = "t", members: dict[str, MemberState] = PRESENT) -> Snapshot:
    return Snapshot(topic_id, "shop", 1.0, GroupState(offset, members=dict(members)))


def start(snapshots: list[Snapshot], first: int, end: int, misfits: tuple[int, ...] = ()) -> ReadingStart:
    return reading_start(snapshots, "t", (first, end), lambda offset, appended_at: offset + 1 not in misfits)


def chosen(start: ReadingStart) -> int | None:
    return None if start.snapshot is None else start.snapshot.state.next_offset


def test_the_snapshot_with_the_highest_event_position_counts() -> None:
    result = start([at(10), at(900), at(500)], 0, 1000)
    assert (chosen(result), result.offset, result.fault) == (900, 900, "")


def test_a_group_without_a_snapshot_is_new_regardless_of_the_age_of_the_log() -> None:
    result = start([], 5000, 9000)
    assert (result.snapshot, result.offset, result.fault) == (None, 5000, "")


def test_records_deleted_behind_a_snapshot_are_a_loss_only_if_members_were_present() -> None:
    assert start([at(100)], 150, 200).fault
    result = start([at(100, members=ABSENT)], 150, 200)
    assert (chosen(result), result.offset, result.fault) == (100, 150, "")


def test_a_log_shorter_than_one_of_its_snapshots_is_lost() -> None:
    assert "cut below 900" in start([at(300), at(900)], 0, 500).fault
    assert "cut below 900" in start([at(300), at(900), at(600)], 0, 700).fault


def test_a_truncated_log_that_grew_again_is_recognised_by_the_record_before_the_snapshot() -> None:
    assert start([at(900)], 0, 2000, misfits=(900,)).fault


def test_a_snapshot_written_by_two_members_is_not_a_loss() -> None:
    result = start([at(300), at(600), at(600)], 0, 700)
    assert (chosen(result), result.fault) == (600, "")


def test_snapshots_of_a_former_topic_are_a_loss() -> None:
    result = start([at(900, "former")], 0, 0)
    assert (result.snapshot, result.offset, result.fault) == (None, 0, RECREATED)
    assert start([at(900, "former"), at(5)], 0, 9).fault == ""
