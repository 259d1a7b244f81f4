"""The result of a verification: invariants that are proven, violated or not proven, and violations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from penstock.logs.log import Partition


class Verdict(StrEnum):
    """The result for an invariant, the worst last. Only what was checked in full is proven."""

    PROVEN = "proven"
    NOT_PROVEN = "not proven"
    VIOLATED = "violated"


@dataclass(frozen=True, slots=True)
class Unproven:
    """Something that was not checked, and what would prove it."""

    what: str
    remedy: str


VALUES_OF_SQL = Unproven(
    "the values of a job with `sql:`: its columns are computed by Spark",
    "compare a query of the table with the same query of the topic in Spark",
)


class ViolationKind(StrEnum):
    """What is wrong with an offset; the value is the text that a person reads."""

    TWICE = "twice in the table"
    TWICE_IN_QUARANTINE = "twice in quarantine"
    BOTH = "in both table and quarantine"
    MISSING = "missing"
    BEYOND_POSITION = "beyond position"
    BEFORE_ORIGIN = "before the origin"
    UNKNOWN_PARTITION = "of a partition that the job never read"
    NOT_IN_LOG = "not in the log"
    TOO_MANY = "more rows than were written"
    NOT_COUNTED = "counts do not add up"
    HOLE = "no slice holds it"
    OVERLAP = "in two slices"
    MISFILED = "filed under another partition value than its columns give"
    ALTERED = "not what the record in the log gives"


@dataclass(frozen=True, slots=True)
class Violation:
    """The first offset of a partition that breaks an invariant.

    With `end` the violation is somewhere in `[offset, end)`: counts prove it, and no single offset can be named.
    """

    topic: str
    partition: int
    offset: int
    kind: ViolationKind
    end: int | None = None

    def __str__(self) -> str:
        where = f"offset {self.offset}" if self.end is None else f"offsets [{self.offset}, {self.end})"
        return f"{self.topic}/{self.partition} {where}: {self.kind}"


@dataclass(frozen=True, slots=True)
class Check:
    """One named invariant: the result as text, and what was not checked."""

    name: str
    detail: str
    violated: bool
    violation: Violation | None = field(default=None, kw_only=True)
    """The first violation that has an offset."""
    unproven: Sequence[Unproven] = field(default=(), kw_only=True)
    warnings: Sequence[str] = field(default=(), kw_only=True)
    facts: Mapping[str, int] = field(default_factory=dict, kw_only=True)

    @property
    def verdict(self) -> Verdict:
        return Verdict.VIOLATED if self.violated else Verdict.NOT_PROVEN if self.unproven else Verdict.PROVEN

    @property
    def ok(self) -> bool:
        return self.verdict is Verdict.PROVEN


@dataclass(frozen=True, slots=True)
class Proof:
    """The checks of one version of a table; None while there is no table."""

    version: int | None
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport(Proof):
    """The result of `verify`."""

    job: str
    table: str
    deep: bool

    @property
    def verdict(self) -> Verdict:
        return max((check.verdict for check in self.checks), key=list(Verdict).index, default=Verdict.PROVEN)

    @property
    def ok(self) -> bool:
        """Whether every invariant was checked in full and holds."""
        return self.verdict is Verdict.PROVEN

    @property
    def first_violation(self) -> Violation | None:
        return earliest(check.violation for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "ok": self.ok,
            "verdict": self.verdict.name.lower(),
            "table": self.table,
            "version": self.version,
            "deep": self.deep,
            "checks": [_check_json(check) for check in self.checks],
            "first_violation": _violation_json(self.first_violation),
        }


def earliest(violations: Iterable[Violation | None]) -> Violation | None:
    """The first by topic and partition; in a partition exact offsets come before ranges."""
    return min(
        (violation for violation in violations if violation is not None),
        key=lambda violation: (violation.topic, violation.partition, violation.end is not None, violation.offset),
        default=None,
    )


NO_TABLE = Proof(None, (Check("table", "there is no table yet: the job has not started", True),))


def violation_at(partition: Partition, offset: int, kind: ViolationKind, end: int | None = None) -> Violation:
    return Violation(partition.topic, partition.number, offset, kind, end)


def _check_json(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "ok": check.ok,
        "verdict": check.verdict.name.lower(),
        "detail": check.detail,
        "not_proven": [asdict(question) for question in check.unproven],
        "warnings": list(check.warnings),
        "violation": _violation_json(check.violation),
        **check.facts,
    }


def _violation_json(violation: Violation | None) -> dict[str, Any] | None:
    if violation is None:
        return None
    return {**asdict(violation), "kind": violation.kind.name.lower(), "text": str(violation.kind)}
