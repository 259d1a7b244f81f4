"""Finding the records that break a batch's Spark job, so that they go to quarantine and the others go on.

The slices are halved, and each half is tried without writing, until one record is left. It must fail repeatedly while
tasks without records succeed, so that a faulty cluster quarantines no good record (docs/protocol.md, "When a Spark job
fails").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from penstock.errors import TransientError, UserError
from penstock.logs.log import Partition, Slice

RecordPlace = tuple[Partition, int]
"""A record by its partition and offset."""
Poison = Mapping[RecordPlace, str]
"""Records that break the job, each with the reason."""
Probe = Callable[[Sequence[Slice], Poison], str | None]
"""Run the job over slices without writing and without the poison; gives the error text, or None if it succeeds.

Without slices it runs tasks without records. It raises for a failure that no record can cause: the search ends.
"""

POISON_PER_BATCH_MAX = 16
ALONE_FAILURES_MIN = 3
"""How often a record must fail alone, with a healthy task before each repetition."""


class UnhealthyTasksError(TransientError):
    """Spark's tasks fail even without records."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "Spark's tasks fail before they have read a record",
            detail=reason,
            hint="`penstock check --cluster` tries each executor: it must start Python (spark.pyspark.python in "
            "spark.conf, or PYSPARK_PYTHON) with Penstock's packages, which `penstock pack` ships",
        )


def find_poison(slices: Sequence[Slice], probe: Probe) -> dict[RecordPlace, str]:
    """All records that break the job; none if the job succeeds now, or if no record fails repeatedly."""
    suspects = [piece for piece in slices if piece.read_from < piece.end]
    _check_health(probe)
    poison: dict[RecordPlace, str] = {}
    while probe(suspects, poison) is not None:
        failing = _breaking_alone(suspects, probe, poison)
        if failing is None or failing[0] in poison:
            return {}
        place, reason = failing
        poison[place] = reason
        if len(poison) > POISON_PER_BATCH_MAX:
            raise UserError(
                f"more than {POISON_PER_BATCH_MAX} records of one batch break its Spark job",
                detail=reason,
                hint="use functions that return null instead of failing, such as try_cast and try_divide",
            )
    return poison


def _breaking_alone(suspects: Sequence[Slice], probe: Probe, poison: Poison) -> tuple[RecordPlace, str] | None:
    """One record that fails alone and keeps failing; None if the halves lead to none."""
    while len(suspects) > 1:
        half = suspects[: len(suspects) // 2]
        suspects = half if probe(half, poison) is not None else suspects[len(suspects) // 2 :]
    piece = suspects[0]
    while piece.end - piece.read_from > 1:
        middle = (piece.read_from + piece.end) // 2
        lower = replace(piece, end=middle)
        piece = lower if probe([lower], poison) is not None else replace(piece, read_from=middle)
    reason = ""
    for _ in range(ALONE_FAILURES_MIN):
        _check_health(probe)
        error = probe([piece], poison)
        if error is None:
            return None
        reason = error
    return (piece.partition, piece.read_from), reason


def _check_health(probe: Probe) -> None:
    reason = probe((), {})
    if reason is not None:
        raise UnhealthyTasksError(reason)
