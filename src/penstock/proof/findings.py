"""What a verification found, as values: invariants that are proven, violated or not proven, and violations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from msgspec import structs

from penstock.lake.state import Totals
from penstock.logs.log import Partition


class Verdict(StrEnum):
    """What became of an invariant. Only what was checked in full is proven."""

    PROVEN = "proven"
    VIOLATED = "violated"
    NOT_PROVEN = "not proven"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """A violation outweighs a missing proof, which outweighs a proof."""
    verdicts = set(verdicts)
    return _verdict(Verdict.VIOLATED in verdicts, Verdict.NOT_PROVEN in verdicts)


@dataclass(frozen=True, slots=True)
class Unproven:
    """Something that was not checked, and what would prove it; of all partitions unless it names some."""

    what: str
    remedy: str
    partitions: frozenset[Partition] | None = None


VALUES_OF_SQL = Unproven(
    "the values of a job with `sql:`: its columns are computed by Spark",
    "compare a query of the table with the same query of the topic in Spark",
)


class ViolationKind(StrEnum):
    """What is wrong with an offset; the value is the text that a person reads."""

    TWICE = "twice in the table"
    TWICE_IN_QUARANTINE = "twice in quarantine"
    MISSING_IN_QUARANTINE = "missing in quarantine"
    TOO_MANY_QUARANTINED = "more rows in quarantine than were quarantined"
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
    NO_PLACE = "a row without its partition and offset"
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
    """One named invariant: what was found, and what was not checked."""

    name: str
    detail: str
    violated: bool
    violations: Collection[Violation] = field(default=(), kw_only=True)
    """Those that have an offset."""
    unproven: Sequence[Unproven] = field(default=(), kw_only=True)
    warnings: Sequence[str] = field(default=(), kw_only=True)
    facts: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    checked: Collection[Partition] = field(default=(), kw_only=True)
    """The partitions that it is an invariant of."""

    @property
    def verdict(self) -> Verdict:
        return _verdict(self.violated, bool(self.unproven))

    @property
    def ok(self) -> bool:
        return self.verdict is Verdict.PROVEN

    @property
    def violation(self) -> Violation | None:
        """The first of all."""
        return earliest(self.violations)

    @property
    def partitions(self) -> dict[Partition, Verdict]:
        """What became of the invariant in each partition."""
        wrong = {(violation.topic, violation.partition) for violation in self.violations}
        return {
            partition: _verdict(
                (partition.topic, partition.number) in wrong,
                any(question.partitions is None or partition in question.partitions for question in self.unproven),
            )
            for partition in self.checked
        }


def _verdict(violated: bool, left: bool) -> Verdict:
    return Verdict.VIOLATED if violated else Verdict.NOT_PROVEN if left else Verdict.PROVEN


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """What the table and the log say of one partition; the log's side is None where it was not asked."""

    partition: Partition
    origin: int
    position: int
    totals: Totals
    first: int | None = None
    end: int | None = None

    @property
    def lag_records(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of the invariants of one table, as of one version of it; None while there is no table."""

    version: int | None
    checks: tuple[Check, ...]
    partitions: tuple[PartitionFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport(Proof):
    """The result of `verify`: every check, and the facts that they were made from."""

    job: str
    table: str
    deep: bool

    @property
    def verdict(self) -> Verdict:
        return worst(check.verdict for check in self.checks)

    @property
    def ok(self) -> bool:
        """Whether every invariant was checked in full and holds."""
        return self.verdict is Verdict.PROVEN

    @property
    def scope(self) -> str:
        """What a verification of this depth is about, in words."""
        names = {check.name for check in self.checks}
        records = "against the records of the log" if self.deep else "not against the records of the log (--shallow)"
        values = "values compared with the log" if "values" in names else "values not compared (--values)"
        return f"rows and offsets contiguous, unique, conserved; {records}; {values}"

    def verdicts_of(self, partition: Partition) -> dict[str, Verdict]:
        """What became of each invariant in one partition; invariants of the table as a whole are not among them."""
        return {check.name: check.partitions[partition] for check in self.checks if partition in check.checked}

    @property
    def first_violation(self) -> Violation | None:
        return earliest(check.violation for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "ok": self.ok,
            "verdict": self.verdict.name.lower(),
            "scope": self.scope,
            "table": self.table,
            "version": self.version,
            "deep": self.deep,
            "checks": [_check_json(check) for check in self.checks],
            "first_violation": _violation_json(self.first_violation),
            "partitions": [_partition_json(each, self.verdicts_of(each.partition)) for each in self.partitions],
        }


def earliest(violations: Iterable[Violation | None]) -> Violation | None:
    """The first of several by topic, partition and offset; a range gives way to an exact offset within it."""
    known = sorted(
        (violation for violation in violations if violation is not None),
        key=lambda violation: (violation.topic, violation.partition, violation.offset),
    )
    if not known:
        return None
    first = known[0]
    exact = (
        violation
        for violation in known
        if violation.end is None and (violation.topic, violation.partition) == (first.topic, first.partition)
    )
    return next((violation for violation in exact if violation.offset < (first.end or 0)), first)


NO_TABLE = Proof(None, (Check("table", "there is no table yet: the job has not started", True),))


def violation_at(partition: Partition, offset: int, kind: ViolationKind, end: int | None = None) -> Violation:
    return Violation(partition.topic, partition.number, offset, kind, end)


def _check_json(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "ok": check.ok,
        "verdict": check.verdict.name.lower(),
        "detail": check.detail,
        "not_proven": [_unproven_json(question) for question in check.unproven],
        "warnings": list(check.warnings),
        "violation": _violation_json(check.violation),
        **check.facts,
    }


def _violation_json(violation: Violation | None) -> dict[str, Any] | None:
    if violation is None:
        return None
    return {**asdict(violation), "kind": violation.kind.name.lower(), "text": str(violation.kind)}


def _place_json(partition: Partition) -> dict[str, Any]:
    return {"topic": partition.topic, "topic_id": partition.topic_id, "partition": partition.number}


def _unproven_json(unproven: Unproven) -> dict[str, Any]:
    places = [_place_json(partition) for partition in sorted(unproven.partitions or ())]
    return {"what": unproven.what, "remedy": unproven.remedy, "partitions": places or None}


def _partition_json(facts: PartitionFacts, verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    return {
        **_place_json(facts.partition),
        **{name: getattr(facts, name) for name in ("origin", "position", "first", "end", "lag_records")},
        "verdict": worst(verdicts.values()).name.lower(),
        "invariants": {name: verdict.name.lower() for name, verdict in verdicts.items()},
        **structs.asdict(facts.totals),
    }
