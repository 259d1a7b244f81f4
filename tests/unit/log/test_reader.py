"""How slices are cut into pieces for tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.offsets import Partition, Slice
from penstock.log.reader import Piece, pieces_of


def piece(number: int, start: int, end: int, read_from: int | None = None) -> Slice:
    return Slice(Partition("web", "id", number), start, end, start if read_from is None else read_from)


def test_one_slice_gives_every_core_a_piece() -> None:
    assert pieces_of([piece(0, 10, 40_010)], 2) == (Piece("web", 0, 10, 20_010), Piece("web", 0, 20_010, 40_010))


def test_a_small_slice_stays_whole() -> None:
    assert pieces_of([piece(0, 10, 20)], 2) == (Piece("web", 0, 10, 20),)


def test_many_slices_stay_whole() -> None:
    assert pieces_of([piece(0, 0, 5), piece(1, 0, 5), piece(2, 0, 5)], 2) == (
        Piece("web", 0, 0, 5),
        Piece("web", 1, 0, 5),
        Piece("web", 2, 0, 5),
    )


def test_a_gap_and_an_empty_slice_are_not_read() -> None:
    assert pieces_of([piece(0, 0, 9, read_from=7), piece(1, 4, 4)], 1) == (Piece("web", 0, 7, 9),)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50_000)), max_size=4), st.integers(1, 16))
def test_pieces_cover_their_slices_without_hole_or_overlap(ranges: list[tuple[int, int]], tasks_min: int) -> None:
    slices = [piece(number, start, start + size) for number, (start, size) in enumerate(ranges)]
    pieces = pieces_of(slices, tasks_min)
    for each in slices:
        offsets = [
            offset
            for part in pieces
            if part.partition == each.partition.number
            for offset in range(part.start, part.end)
        ]
        assert offsets == list(range(each.start, each.end))
