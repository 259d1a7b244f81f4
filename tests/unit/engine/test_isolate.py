"""The record that breaks a batch is found by halves, whatever stands around it."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.isolate import Probe, find_poison
from penstock.log.offsets import Partition, Slice

PARTITIONS = [Partition("web", "id", number) for number in range(3)]
Place = tuple[int, int]


def probe_for(poison: set[Place]) -> Probe:
    """A job that fails on poisonous records and nothing else."""

    def probe(slices: Sequence[Slice]) -> str | None:
        for piece in slices:
            for offset in range(piece.read_from, piece.end):
                if (piece.partition.number, offset) in poison:
                    return f"boom at {offset}"
        return None

    return probe


def slices_of(*ends: int) -> list[Slice]:
    """Slices from offset 10, of which the log lost the first two."""
    return [Slice(PARTITIONS[number], 10, end, 12) for number, end in enumerate(ends)]


def test_a_job_that_runs_again_has_no_poison() -> None:
    assert find_poison(slices_of(20, 30), probe_for(set())) is None
    assert find_poison(slices_of(12, 12), probe_for(set())) is None


@given(
    st.lists(st.integers(12, 60), min_size=1, max_size=3),
    st.sets(st.tuples(st.integers(0, 2), st.integers(12, 59)), max_size=5),
)
def test_every_poisonous_record_is_found_and_no_other(ends: list[int], drawn: set[Place]) -> None:
    poison = {place for place in drawn if place[0] < len(ends) and place[1] < ends[place[0]]}
    left = set(poison)
    while left:
        found = find_poison(slices_of(*ends), probe_for(left))
        assert found is not None
        partition, offset, error = found
        assert error == f"boom at {offset}"
        left.remove((partition.number, offset))
    assert find_poison(slices_of(*ends), probe_for(left)) is None
