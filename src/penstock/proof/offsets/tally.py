"""What the parts of one partition add up to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.proof.findings import Violation
from penstock.proof.invariants import Span
from penstock.proof.offsets.verdicts import Reconciled


@dataclass(slots=True)
class Tally:
    """What the parts of one partition have shown so far."""

    spans: tuple[Span, ...]
    violations: list[Violation] = field(default_factory=list)
    log_violations: list[Violation] = field(default_factory=list)
    held_counts: list[int] = field(default_factory=list)
    log_counts: list[int] = field(default_factory=list)
    quarantine_counts: list[int] = field(default_factory=list)
    log_first: int = 0

    def __post_init__(self) -> None:
        self.held_counts = [0] * len(self.spans)
        self.log_counts = [0] * len(self.spans)
        self.quarantine_counts = [0] * len(self.spans)

    def add(self, found: Reconciled) -> None:
        self.violations += found.violations
        self.log_violations += found.log_violations
        self.held_counts = _sums(self.held_counts, found.held_counts)
        self.log_counts = _sums(self.log_counts, found.log_counts)
        self.quarantine_counts = _sums(self.quarantine_counts, found.quarantine_counts)

    @property
    def lacking(self) -> int:
        """How many rows are missing over all spans."""
        return sum(max(0, span.held_min - count) for span, count in zip(self.spans, self.held_counts, strict=True))


def _sums(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]
