"""What a verification found, as values: checks that hold or fail, and the first offset that offends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from penstock.log.offsets import Partition
from penstock.tables.state import Totals


class OffenceKind(StrEnum):
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


@dataclass(frozen=True, slots=True)
class Offence:
    """The first offset of a partition that breaks a law.

    With `end` the offence is somewhere in `[offset, end)`: counts prove it, and no single offset can be named.
    """

    topic: str
    partition: int
    offset: int
    kind: OffenceKind
    end: int | None = None

    def encloses(self, other: Offence) -> bool:
        """Whether this range holds the other's offset."""
        same = (self.topic, self.partition) == (other.topic, other.partition)
        return same and self.end is not None and self.offset <= other.offset < self.end

    def __str__(self) -> str:
        where = f"offset {self.offset}" if self.end is None else f"offsets [{self.offset}, {self.end})"
        return f"{self.topic}/{self.partition} {where}: {self.kind}"


@dataclass(frozen=True, slots=True)
class Check:
    """One named law and whether it holds. `checked` is False where the table does not keep what the law needs."""

    name: str
    ok: bool
    detail: str
    offence: Offence | None = None
    checked: bool = True
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, int] = field(default_factory=dict)


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
    """What became of the laws of one table, as of one version of it; None while there is no table."""

    version: int | None
    checks: tuple[Check, ...]
    partitions: tuple[PartitionFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`: every check, and the facts that they were made from."""

    job: str
    table: str
    version: int | None
    """The version of the table that was verified; None while there is no table."""
    deep: bool
    checks: tuple[Check, ...]
    partitions: tuple[PartitionFacts, ...] = ()

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def first_offence(self) -> Offence | None:
        """The first offending offset of all failed checks."""
        return earliest(check.offence for check in self.checks if not check.ok)

    def as_json(self) -> dict[str, Any]:
        """The report as plain values for `--json`."""
        offence = self.first_offence
        return {
            "job": self.job,
            "ok": self.ok,
            "table": self.table,
            "version": self.version,
            "deep": self.deep,
            "checks": [_check_json(check) for check in self.checks],
            "first_offence": None if offence is None else _offence_json(offence),
            "partitions": [_partition_json(each) for each in self.partitions],
        }


def earliest(offences: Iterable[Offence | None]) -> Offence | None:
    """The first of several offences by topic, partition and offset; a range gives way to an exact offset within it."""
    found = [each for each in offences if each is not None]
    exact = [each for each in found if each.end is None]
    ranges = [each for each in found if each.end is not None and not any(each.encloses(other) for other in exact)]
    return min(exact + ranges, key=lambda each: (each.topic, each.partition, each.offset), default=None)


NO_TABLE = Proof(None, (Check("table", False, "there is no table yet: the job has not started"),))


def offence_at(partition: Partition, offset: int, kind: OffenceKind, end: int | None = None) -> Offence:
    return Offence(partition.topic, partition.number, offset, kind, end)


def _check_json(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "ok": check.ok,
        "checked": check.checked,
        "detail": check.detail,
        "warnings": list(check.warnings),
        "offence": None if check.offence is None else _offence_json(check.offence),
        **check.facts,
    }


def _offence_json(offence: Offence) -> dict[str, Any]:
    return {**asdict(offence), "kind": offence.kind.name.lower(), "text": str(offence.kind)}


def _partition_json(facts: PartitionFacts) -> dict[str, Any]:
    return {
        "topic": facts.partition.topic,
        "topic_id": facts.partition.topic_id,
        "partition": facts.partition.number,
        "origin": facts.origin,
        "position": facts.position,
        "first": facts.first,
        "end": facts.end,
        "lag_records": facts.lag_records,
        **asdict(facts.totals),
    }
