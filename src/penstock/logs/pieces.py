"""How the slices of a batch are dealt out to tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from penstock.logs.log import Piece, Slice

PIECE_RECORDS_MIN = 10_000
"""Fewer are not worth a task and a file of their own."""


def pieces_of(slices: Sequence[Slice], tasks_min: int) -> tuple[Piece, ...]:
    """Cut the slices so that few of them still give every core its work; a small slice stays whole."""
    total = sum(each.end - each.read_from for each in slices)
    pieces = []
    for each in slices:
        size = each.end - each.read_from
        if not size:
            continue
        count = max(1, min(round(tasks_min * size / total), size // PIECE_RECORDS_MIN))
        cuts = [each.read_from + size * number // count for number in range(count + 1)]
        pieces += [Piece(each.partition.topic, each.partition.number, start, end) for start, end in pairwise(cuts)]
    return tuple(pieces)
