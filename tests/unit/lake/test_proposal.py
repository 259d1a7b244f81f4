"""The pure check of a commit: what a table accepts, what it refuses, and what a commit leaves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.write.manifest import Counts, StagedFile
from penstock.lake.delta.effect import effect
from penstock.lake.delta.keys import field_key, position_key, state_of, topic_fingerprint, topic_key
from penstock.lake.proposal import FencePart, Proposal, SlicePart, StartPart, check
from penstock.lake.state import DeltaPartition, DeltaState, Totals
from penstock.logs.log import EpochMark, Partition, Slice

ONE = Partition("web", "idA", 1)
TWO = Partition("web", "idA", 2)


def state(**positions: tuple[int, int]) -> DeltaState:
    """Positions and tokens by the names one and two."""
    partitions = {"one": ONE, "two": TWO}
    return DeltaState(
        5, {partitions[name]: DeltaPartition(position, 0, token) for name, (position, token) in positions.items()}, {}
    )


def numbers_of(before: DeltaState) -> dict[str, int]:
    """The app transactions that give positions, origins and tokens of a state."""
    return {
        key: number
        for place, partition in before.partitions.items()
        for key, number in (
            (position_key("job", place), partition.position or 0),
            (field_key("job", place, "origin"), partition.origin or 0),
            (field_key("job", place, "token"), partition.token),
        )
    }


def part(partition: Partition, start: int, end: int, token: int = 1, **counts: int) -> SlicePart:
    read = counts or {"read": end - start, "written": end - start}
    return SlicePart(Slice(partition, start, end, start), token, Counts(**read))


def test_a_slice_that_begins_at_the_position_is_accepted() -> None:
    checked = check(Proposal("job", "b", (part(ONE, 10, 20),)), state(one=(10, 1)))
    assert [item.partition for item in checked.accepted] == [ONE] and not checked.refused


def test_a_slice_behind_or_ahead_of_the_position_is_refused() -> None:
    for position in (9, 11, 20):
        checked = check(Proposal("job", "b", (part(ONE, 10, 20),)), state(one=(position, 1)))
        assert not checked.accepted and checked.refused[0].partition == ONE


def test_an_older_token_is_refused_and_an_equal_or_newer_one_is_not() -> None:
    assert check(Proposal("job", "b", (part(ONE, 10, 20, token=3),)), state(one=(10, 4))).refused
    assert check(Proposal("job", "b", (part(ONE, 10, 20, token=4),)), state(one=(10, 4))).accepted
    assert check(Proposal("job", "b", (part(ONE, 10, 20, token=5),)), state(one=(10, 4))).accepted


def test_refusal_is_per_partition() -> None:
    checked = check(Proposal("job", "b", (part(ONE, 10, 20), part(TWO, 3, 4))), state(one=(15, 1), two=(3, 1)))
    assert [item.partition for item in checked.accepted] == [TWO]
    assert [refusal.partition for refusal in checked.refused] == [ONE]


def test_a_start_is_accepted_once() -> None:
    start = Proposal("job", "b", (StartPart(ONE, 7, 1),))
    assert check(start, DeltaState(0, {}, {})).accepted
    assert check(start, state(one=(7, 1))).refused


def test_a_start_commits_position_origin_token_and_topic_identity() -> None:
    start = Proposal("job", "b", (StartPart(ONE, 7, 1),))
    made = effect(start, start.parts, DeltaState(0, {}, {}))
    assert made.transactions == {
        position_key("job", ONE): 7,
        field_key("job", ONE, "origin"): 7,
        field_key("job", ONE, "token"): 1,
        topic_key("job", "web"): topic_fingerprint("idA"),
    }


def test_a_slice_commits_position_token_and_the_totals_that_changed() -> None:
    proposal = Proposal("job", "b", (part(ONE, 10, 20, read=8, written=5, quarantined=2, filtered=1),))
    before = DeltaState(5, {ONE: DeltaPartition(10, 0, 1, Totals(read=10, written=10))}, {})
    made = effect(proposal, proposal.parts, before)
    assert made.transactions == {
        position_key("job", ONE): 20,
        field_key("job", ONE, "token"): 1,
        field_key("job", ONE, "read"): 18,
        field_key("job", ONE, "written"): 15,
        field_key("job", ONE, "quarantined"): 2,
        field_key("job", ONE, "filtered"): 1,
        field_key("job", ONE, "holes"): 2,
    }


def test_a_gap_is_counted_apart_from_holes() -> None:
    piece = SlicePart(Slice(ONE, 10, 20, read_from=16), 1, Counts(read=4, written=4))
    made = effect(Proposal("job", "b", (piece,)), (piece,), state(one=(10, 1)))
    assert state_of(6, made.transactions.get, "job", [ONE]).of(ONE).totals == Totals(read=4, written=4, gap=6)


def test_quarantine_files_leave_a_mark_at_the_end_of_their_slice() -> None:
    bad = StagedFile("web", 1, "q.pq", 1, 10)
    piece = SlicePart(Slice(ONE, 10, 20, 10), 1, Counts(read=10, written=9, quarantined=1), (), (bad,))
    made = effect(Proposal("job", "b", (piece,)), (piece,), state(one=(10, 1)))
    assert made.transactions[field_key("job", ONE, "quarantine")] == 20
    assert made.metadata["penstock"]["slices"][0]["files"][0]["path"] == "q.pq"


def test_the_last_record_with_a_leader_epoch_is_kept_until_another_one_is_read() -> None:
    numbers = numbers_of(state(one=(10, 1)))
    slices = (
        SlicePart(Slice(ONE, 10, 20, 10), 1, Counts(read=8, written=8), mark=EpochMark(end=18, epoch=3)),
        part(ONE, 20, 30, read=0),
        FencePart(ONE, 2),
    )
    changed = []
    for item in slices:
        made = effect(Proposal("job", "b", (item,)), (item,), state_of(5, numbers.get, "job", [ONE]))
        numbers |= made.transactions
        changed.append({name: number for name, number in made.transactions.items() if "#epoch" in name})
    assert changed == [{field_key("job", ONE, "epoch"): 3, field_key("job", ONE, "epoch_end"): 18}, {}, {}]
    after = state_of(8, numbers.get, "job", [ONE]).of(ONE)
    assert (after.position, after.mark) == (30, EpochMark(end=18, epoch=3))


def test_a_fence_raises_the_token_and_keeps_the_position() -> None:
    fence = Proposal("job", "b", (FencePart(ONE, 9),))
    made = effect(fence, fence.parts, state(one=(10, 4)))
    assert made.transactions == {position_key("job", ONE): 10, field_key("job", ONE, "token"): 9}
    assert check(
        Proposal("job", "b", (part(ONE, 10, 20, token=8),)), state_of(6, made.transactions.get, "job", [ONE])
    ).refused


def test_fingerprints_fit_an_app_transaction_and_distinguish_topics() -> None:
    prints = {topic_fingerprint(f"topic id {number}") for number in range(1000)}
    assert len(prints) == 1000 and all(0 <= item < 2**63 for item in prints)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=30))
def test_accepted_slices_are_contiguous_and_totals_add_up(proposed: list[tuple[int, int]]) -> None:
    current = state(one=(0, 1))
    numbers = numbers_of(current)
    accepted: list[Slice] = []
    for start, length in proposed:
        proposal = Proposal("job", "b", (part(ONE, start, start + length),))
        checked = check(proposal, current)
        if checked.accepted:
            numbers |= effect(proposal, checked.accepted, current).transactions
            current = state_of(current.version + 1, numbers.get, "job", [ONE])
            accepted.append(proposal.parts[0].piece)  # type: ignore[union-attr]
    ends = [0, *(item.end for item in accepted)]
    assert [piece.start for piece in accepted] == ends[:-1]
    assert current.of(ONE).position == ends[-1] == current.of(ONE).totals.offsets
