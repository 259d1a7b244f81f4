"""The laws of the fold: they hold for any records, sent from any view, in any order."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from penstock.claims.protocol.codec import decode, encode
from penstock.claims.protocol.fold import apply
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import (
    ClaimingMessages,
    ClaimingPartition,
    ForgettingPartitions,
    FreeingPartition,
    Record,
    ReleaseGroup,
    Seeking,
    partitions_of,
)
from penstock.claims.protocol.state import GroupState, MemberState
from penstock.logs.log import Partition
from tests.support.coordination import GROUP
from tests.unit.claims.protocol.random_log import (
    PARTITIONS,
    PLANNED_MAX,
    PlannedRecord,
    Step,
    drafts_of,
    log_of,
    random_plans,
)

INSTANTS = st.floats(-1e6, 1e6)


@given(
    random_plans(),
    st.lists(INSTANTS, min_size=PLANNED_MAX + 2, max_size=PLANNED_MAX + 2),
)
def test_every_reader_agrees_at_every_prefix_under_any_clock(
    planned_records: list[PlannedRecord], read_at: list[float]
) -> None:
    view = GroupView(GROUP, 10.0)
    for step in log_of(planned_records):
        view.read(step.offset, step.record, read_at[step.offset], float(step.offset))
        assert view.state == step.after


@given(random_plans(), st.integers(0, PLANNED_MAX))
def test_a_reader_from_a_snapshot_agrees_with_a_full_reader(planned_records: list[PlannedRecord], cut: int) -> None:
    steps = log_of(planned_records)
    state = steps[cut].before.copy() if cut < len(steps) else GroupState()
    for step in steps[cut:]:
        record = decode(encode(step.record, GROUP, 1), GROUP)[0]
        refusal = apply(state, step.offset, record, float(step.offset))
        assert (state, refusal) == (step.after, step.refusal)


@given(random_plans())
def test_a_refused_record_changes_nothing(planned_records: list[PlannedRecord]) -> None:
    for step in log_of(planned_records):
        assert step.after.next_offset == step.offset + 1
        if step.refusal is not None:
            assert step.after.claims == step.before.claims
            assert step.after.target == step.before.target
            alive = {key: member.who for key, member in step.after.members.items()}
            assert alive == {key: item.who for key, item in step.before.members.items()}


@given(random_plans())
def test_tokens_only_grow_and_every_new_owner_has_a_new_one(planned_records: list[PlannedRecord]) -> None:
    for step in log_of(planned_records):
        for partition in PARTITIONS:
            before, after = step.claims(partition)
            if forgotten(step, partition):
                continue
            assert after.token >= before.token
            if after.held and (not before.held or after.owner != before.owner):
                assert after.token > before.token


@given(random_plans())
def test_a_partition_changes_hands_only_by_a_claim_of_its_new_owner(planned_records: list[PlannedRecord]) -> None:
    for step in log_of(planned_records):
        for partition in PARTITIONS:
            before, after = step.claims(partition)
            if forgotten(step, partition):
                continue
            if after.token != before.token or after.owner != before.owner:
                assert isinstance(step.record, ClaimingPartition | FreeingPartition)
                assert partition in partitions_of(step.record)
                assert after.owner == step.record.who
            if after.held and not before.held:
                assert isinstance(step.record, ClaimingPartition)


@given(random_plans())
def test_only_present_members_hold_anything(planned_records: list[PlannedRecord]) -> None:
    for step in log_of(planned_records):
        for claim in step.after.claims.values():
            assert not claim.held or (claim.owner is not None and step.after.present(claim.owner))


@given(random_plans())
def test_a_token_has_only_one_owner_ever(planned_records: list[PlannedRecord]) -> None:
    owners: dict[object, object] = {}
    for step in log_of(planned_records):
        for partition in PARTITIONS:
            claim = step.claims(partition)[1]
            if forgotten(step, partition):
                owners = {key: owner for key, owner in owners.items() if key[0] != partition}  # type: ignore[index]
            if claim.token:
                assert owners.setdefault((partition, claim.token), claim.owner) == claim.owner


def forgotten(step: Step, partition: Partition) -> bool:
    """A forgotten partition starts at token 0: no member requests it any more, and tables keep their tokens."""
    return isinstance(step.record, ForgettingPartitions) and partition not in step.after.claims


@given(random_plans())
def test_a_position_falls_only_by_a_seek(planned_records: list[PlannedRecord]) -> None:
    for step in log_of(planned_records):
        for partition in PARTITIONS:
            before, after = step.claims(partition)
            sought = isinstance(step.record, Seeking | FreeingPartition) or forgotten(step, partition)
            if before.position is not None and not sought:
                assert after.position is not None
                assert after.position >= before.position


def _spans(member: MemberState) -> list[tuple[int, int]]:
    """The numbers of the partitions that a member requests; all are of one topic."""
    return [span for topic in member.wants for span in topic.spans]


@given(random_plans())
def test_the_target_gives_every_requested_partition_to_one_present_member(planned_records: list[PlannedRecord]) -> None:
    for step in log_of(planned_records):
        if step.after.balanced == step.offset:
            given_out = [partition for partitions in step.after.target.values() for partition in partitions]
            spans = [span for member in step.after.members.values() if member.present for span in _spans(member)]
            expected = [
                partition for partition in PARTITIONS if any(start <= partition.number < end for start, end in spans)
            ]
            assert sorted(given_out) == expected
            assert all(step.after.members[client_id].present for client_id in step.after.target)


@given(random_plans())
def test_nothing_is_claimed_while_the_group_is_paused(planned_records: list[PlannedRecord]) -> None:
    for step in log_of(planned_records):
        if step.before.pauses and isinstance(step.record, ClaimingPartition):
            assert step.refusal is not None


@given(random_plans())
def test_given_up_records_are_listed_once_and_in_order(planned_records: list[PlannedRecord]) -> None:
    for step in log_of(planned_records):
        for partition in PARTITIONS:
            given_up = step.claims(partition)[1].given_up
            assert all(start < end for start, end in given_up)
            assert all(one[1] <= other[0] for one, other in pairwise(given_up))


@given(random_plans())
def test_at_most_once_no_offset_is_claimed_twice(planned_records: list[PlannedRecord]) -> None:
    claimed: Counter[tuple[Partition, int]] = Counter()
    for step in log_of(planned_records):
        record = step.record
        if step.refusal is not None:
            continue
        if isinstance(record, Seeking | FreeingPartition | ForgettingPartitions):
            about = partitions_of(record)
            claimed = Counter({key: count for key, count in claimed.items() if key[0] not in about})
        if isinstance(record, ClaimingMessages):
            before = step.claims(record.partition)[0]
            start = max(before.position or 0, before.claimed or 0)
            claimed.update((record.partition, offset) for offset in range(start, record.end))
    assert max(claimed.values(), default=0) <= 1


def test_the_simulation_reaches_every_kind_of_record() -> None:
    """The laws above hold in silence, too: here every kind is seen to be accepted and refused."""
    counts = Counter(
        (type(step.record), step.refusal is None) for seed in range(300) for step in log_of(drafts_of(seed))
    )
    assert [kind.__name__ for kind in get_args(Record) if counts[kind, True] < 10] == []
    assert [kind.__name__ for kind in get_args(Record) if counts[kind, False] < 10 and kind is not ReleaseGroup] == []
