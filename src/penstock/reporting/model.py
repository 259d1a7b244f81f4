"""The values of a status: of a job, its partitions, recorded gaps and alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import structs

from penstock.errors import PenstockError
from penstock.job.spec import JobSpec, Secret
from penstock.lake.state import Totals
from penstock.logs.log import Partition
from penstock.proof.numbers import LogFacts
from penstock.reporting.verdicts import Judgement, PartitionFacts, Verdict, worst

HIDDEN = "******"
NOT_STARTED = Judgement(Verdict.STOP, "not started")
UNKNOWN = "?"
"""Shown where the log cannot be reached."""


class AlertKind(StrEnum):
    """The alerts of every kind of table; a kind may have more in an enum of its own."""

    GAP_AHEAD = "gap ahead"
    RECREATED = "topic recreated"
    TOPIC_GONE = "topic gone"
    BEYOND_END = "position beyond end"
    QUARANTINE = "quarantine not empty"
    MIRROR_LAGGING = "mirror lagging"
    LOG_UNREACHABLE = "log unreachable"
    LAG = "lag"
    AGE = "age"
    RETENTION = "retention"


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that a person should look at."""

    kind: StrEnum
    text: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A day, a window or a bucket in a strip of them."""

    label: str
    state: StrEnum
    detail: str = ""
    share: float = 1.0
    """How much of its cell is filled, up to 1."""


@dataclass(frozen=True, slots=True)
class Strip:
    """Neighbouring days of a type, windows of an interval, or buckets of a table."""

    name: str
    cells: tuple[Cell, ...]


class CellState(StrEnum):
    """The state of a window or a bucket; days have a `DayState`."""

    CLOSED = "closed"
    OPEN = "open"
    FILLED = "filled"


@dataclass(frozen=True, slots=True)
class Section:
    """What only one kind of table shows: values under a key of their own, a table and lines for people."""

    key: str
    values: Any
    headings: tuple[str, ...] = ()
    """Of its table, if it has one; the first column is left-aligned, all others right-aligned."""
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """Instead of lines: what each is about, and its text."""
    strips: tuple[Strip, ...] = ()
    """What only the console draws."""


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A number of a partition that only one kind of table shows, in the column after another."""

    key: str
    heading: str
    after: str
    value: int | None


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition; the fields of the log are None while it is not reachable."""

    partition: Partition
    position: int | None
    token: int
    totals: Totals
    first: int | None = None
    end: int | None = None
    lag_seconds: float | None = None
    """The age of the oldest unread record; None if there is none, or if it could not be read in time."""
    mirrored: int | None = None
    """The offset that the job's consumer group shows."""
    shown_position: int | None = None
    """The lowest offset that is still to be read, which the consumer group should show."""
    retention_seconds: float | None = None
    """Of the topic; None if it is unlimited or not known."""
    judgement: Judgement = field(default_factory=Judgement)
    further: tuple[PartitionColumn, ...] = ()

    @property
    def facts(self) -> PartitionFacts:
        """What its verdict is made of."""
        return PartitionFacts(self.position, self.first, self.end, self.lag_seconds, self.retention_seconds)

    @property
    def lag_records(self) -> int | None:
        """Offsets that the log has and that are not read yet; those without a record count too."""
        return self.facts.lag_records

    @property
    def retention_share(self) -> float | None:
        return self.facts.retention_share

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "topic_id": self.partition.topic_id,
            "partition": self.partition.number,
            "position": self.position,
            "first": self.first,
            "end": self.end,
            "lag_records": self.lag_records,
            "lag_seconds": self.lag_seconds,
            "retention_seconds": self.retention_seconds,
            "retention_share": self.retention_share,
            **asdict(self.judgement),
            "mirrored": self.mirrored,
            "token": self.token,
            **structs.asdict(self.totals),
            **{item.key: item.value for item in self.further},
        }


@dataclass(frozen=True, slots=True)
class RecordedGap:
    """Offsets that the log lost before they were read, and the commit that records them."""

    partition: Partition
    start: int
    end: int
    version: int
    at: datetime

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.number,
            "start": self.start,
            "end": self.end,
            "version": self.version,
            "at": self.at.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class Commit:
    """A batch as the history of its table shows it."""

    version: int
    at: datetime
    read: int = 0
    written: int = 0
    quarantined: int = 0
    filtered: int = 0
    files: int = 0
    size_bytes: int = 0
    lag_records: int | None = None
    """Of its partitions after it, as the log was when it was planned."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """Seconds of plan, read, decode and write; a commit cannot hold how long it takes itself."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "at": self.at.isoformat()}


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of a job. `version` is None while it has not started."""

    job: str
    table: str
    version: int | None
    partitions: tuple[PartitionStatus, ...] = ()
    committed_at: datetime | None = None
    """When the newest version of the table was committed."""
    quarantine_rows: int = 0
    gap_offsets: int = 0
    """All that were ever recorded; `gaps` has those that the table's history still reports."""
    gaps: tuple[RecordedGap, ...] = ()
    alerts: tuple[Alert, ...] = ()
    log_error: str | None = None
    exit_code: int = 0
    """Of the error of the log; 0 if the log answered."""
    sections: tuple[Section, ...] = ()
    judgement: Judgement = NOT_STARTED
    commits: tuple[Commit, ...] = ()
    """The newest batches, the newest first."""

    def judged(self, *others: Judgement) -> JobStatus:
        """The same with the judgement of its worst partition, or of what else is wrong."""
        return replace(
            self, judgement=worst({str(shown.partition): shown.judgement for shown in self.partitions}, *others)
        )

    @property
    def started(self) -> bool:
        return self.version is not None

    def as_json(self) -> dict[str, Any]:
        return {
            "job": self.job,
            **asdict(self.judgement),
            "started": self.started,
            "table": self.table,
            "version": self.version,
            "partitions": [partition.as_json() for partition in self.partitions],
            "committed_at": self.committed_at and self.committed_at.isoformat(),
            "quarantine_rows": self.quarantine_rows,
            "gap_offsets": self.gap_offsets,
            "gaps": [gap.as_json() for gap in self.gaps],
            "alerts": [{"kind": alert.kind.name.lower(), "text": alert.text} for alert in self.alerts],
            "log_error": self.log_error,
            "commits": [commit.as_json() for commit in self.commits],
            **{section.key: section.values for section in self.sections},
        }


class DayState(StrEnum):
    COMPLETE = "complete"
    OPEN = "open"
    REOPENED = "reopened"
    """Late rows came after it was complete."""
    NOT_VISIBLE = "not visible"
    """No more rows are expected, but a commit or a compaction has not moved all its files to their place yet."""


@dataclass(frozen=True, slots=True)
class DayAnswer:
    """Whether a day of a type is complete; read from logs of the table and files, without Kafka."""

    type: str
    day: str
    state: DayState
    reason: str

    @property
    def complete(self) -> bool:
        return self.state is DayState.COMPLETE

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "complete": self.complete}


@dataclass(frozen=True, slots=True)
class LogView:
    """The state of the log; `facts` is None while it is not reachable, and `error` is the reason."""

    facts: LogFacts | None = None
    ages: Mapping[Partition, float] = field(default_factory=dict)
    mirrored: Mapping[Partition, int] = field(default_factory=dict)
    retention: Mapping[str, float] = field(default_factory=dict)
    """Seconds, of topics whose retention is known and limited."""
    error: PenstockError | None = None


def shown_path(job: JobSpec) -> str:
    """The path of the table, unless it is a secret of the job file."""
    return HIDDEN if isinstance(job.table.path, Secret) else job.table.path
