"""Finding the record that breaks a batch's Spark job, so that it goes to quarantine and the others go on.

Decoders put bad records aside by themselves. What is left are failures of the job as a whole: an expression of `sql:`
that raises for one record, or bytes that crash a worker. The slices are halved, each half probed without writing,
until one record stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.log.offsets import Partition, Slice

Probe = Callable[[Sequence[Slice]], str | None]
"""Run the job over slices without writing; the error text, or None if all is well."""

POISON_PER_BATCH_MAX = 16


def find_poison(slices: Sequence[Slice], probe: Probe) -> tuple[Partition, int, str] | None:
    """The partition, offset and error of one record that breaks the job; None if the job now runs."""
    suspects = [each for each in slices if each.read_from < each.end]
    error = probe(suspects)
    if error is None:
        return None
    while len(suspects) > 1:
        half = suspects[: len(suspects) // 2]
        suspects = half if probe(half) is not None else suspects[len(suspects) // 2 :]
    piece = suspects[0]
    while piece.end - piece.read_from > 1:
        middle = (piece.read_from + piece.end) // 2
        lower = replace(piece, end=middle)
        piece = lower if probe([lower]) is not None else replace(piece, read_from=middle)
    error = probe([piece])
    return None if error is None else (piece.partition, piece.read_from, error)
