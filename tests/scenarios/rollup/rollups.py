"""A rollup on in-memory twins, with a clock that only the test moves, and the expected windows by plain Python."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from penstock.claims import Claims
from penstock.engine.round import Rounds, Waiting, open_rounds
from penstock.environment import Environment
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition
from penstock.proof.findings import VerifyReport
from penstock.proof.subject import Sample
from penstock.tables.kind import CompactRequest, VacuumRequest
from penstock.tables.registry import kind_of, load_job
from penstock.watch.verify import verify
from tests.scenarios.local_spark import local_session
from tests.support.memory_log import MemoryLog, MemoryRecord

START = 1_770_000_000
"""The start of a minute, of an hour's tenth, and in the middle of a day."""
ROUNDS_MAX = 200

JOB = """\
job: rollups
log: {{kafka: {{bootstrap: "nowhere:9092", topics: [{topics}]}}}}
decode: {decode}
on: {{bad_share: 1{on}}}
{head}
table:
  rollup:
    path: '{path}'
    windows: [{windows}]
    lateness: {lateness}
    idle_after: 30s
{more}"""

Window = tuple[str, str, int]
"""Series, interval and start, in seconds."""
Values = tuple[int, float, float, float]
"""Count, sum, min and max."""
LENGTHS = {"1m": 60, "10m": 600, "1h": 3600, "24h": 86400}


def point(at: float, value: float = 1.0, host: str = "a", field_name: str = "load") -> bytes:
    content = {"fields": {field_name: value}, "name": "cpu", "tags": {"host": host}, "timestamp": at}
    return json.dumps(content).encode()


@dataclass(slots=True)
class Rollup:
    """One job over a topic of two partitions."""

    folder: Path
    more: str = ""
    """Further lines of the section of the table."""
    clock: float = START
    windows_asked: str = "1m, 10m"
    lateness: str = "10s"
    topics: str = "metrics"
    head: str = ""
    """Further lines of the file."""
    on: str = ""
    decode: str = "telegraf"
    log: MemoryLog = field(default_factory=lambda: MemoryLog({partition(0): {}, partition(1): {}}))

    @property
    def job(self) -> JobSpec:
        path = self.folder / "job.yaml"
        more = "".join(f"    {line}\n" for line in self.more.splitlines())
        path.write_text(
            JOB.format(
                path=self.folder / "windows",
                more=more,
                windows=self.windows_asked,
                lateness=self.lateness,
                topics=self.topics,
                head=self.head,
                on=self.on,
                decode=self.decode,
            )
        )
        return load_job(path)

    def send(self, number: int, *values: bytes | None, topic: str = "metrics") -> None:
        self.log.append(partition(number, topic), *(MemoryRecord(value, at=self.clock) for value in values))

    def environment(self, **more: Any) -> Environment:
        return Environment(now=lambda: self.clock, sleep=lambda _: None, **more)

    def open(self, claims: Claims | None = None, **more: Any) -> Rounds[Any]:
        return open_rounds(
            self.job, local_session(), self.environment(**more), claims, lambda job: self.log.view(job.log)
        )

    def run(self, rounds: Rounds[Any] | None = None, **more: Any) -> Rounds[Any]:
        """Rounds until nothing is due."""
        rounds = rounds or self.open(**more)
        for _ in range(ROUNDS_MAX):
            result = rounds.round(flush_now=True)
            if isinstance(result, Waiting) and result.done:
                return rounds
        raise AssertionError("there was always something due")

    def rows(self) -> dict[Window, dict[str, Any]]:
        """The closed windows with all their columns; each is there once."""
        result: dict[Window, dict[str, Any]] = {}
        for row in pl.read_delta(str(self.folder / "windows")).to_dicts():
            key = (row["series"], row["interval"], int(row["window_start"].timestamp()))
            assert key not in result, f"{key} is there twice"
            result[key] = row
        return result

    def windows(self, interval: str | None = None) -> dict[Window, Values]:
        """The closed windows."""
        return {
            key: (row["count"], row["sum"], row["min"], row["max"])
            for key, row in self.rows().items()
            if interval in (None, key[1])
        }

    def counts(self, interval: str) -> dict[int, int]:
        """Points by start of window, over all series."""
        result: dict[int, int] = defaultdict(int)
        for (_, _, start), values in self.windows(interval).items():
            result[start] += values[0]
        return dict(result)

    def status(self) -> dict[str, Any]:
        report = kind_of(self.job).status(self.job, lambda job: self.log.view(job.log), lambda: self.clock)
        return dict(report.as_json()["rollup"])

    def late(self) -> dict[str, int]:
        return {item["interval"]: item["late"] for item in self.status()["windows"]}

    def verdicts(self, values: bool = False) -> dict[str, str]:
        """By the name of the check."""
        return {check.name: check.verdict.value for check in self.verify(values).checks}

    def compact(self) -> None:
        kind_of(self.job).compact(self.job, CompactRequest(), self.environment(), None)

    def vacuum(self) -> None:
        kind_of(self.job).vacuum(self.job, VacuumRequest(), self.environment())

    def verify(self, values: bool = False, topic: MemoryLog | None = None) -> VerifyReport:
        """With `topic` also what is published to it."""
        sample = Sample(None) if values else None
        return verify(
            self.job,
            values=sample,
            open_log=lambda job: (topic if topic and "rollups" in job.log.topics else self.log).view(job.log),
            published=topic is not None,
        )


def partition(number: int, topic: str = "metrics") -> Partition:
    return Partition(topic, "id-1" if topic == "metrics" else f"id-{topic}", number)


def expected(points: Iterable[tuple[str, float, float]], intervals: Iterable[str]) -> dict[Window, Values]:
    """The windows of points (series, time, value), by plain Python."""
    grouped: Mapping[Window, list[float]] = defaultdict(list)
    for series, at, value in points:
        for interval in intervals:
            length = LENGTHS[interval]
            grouped[series, interval, int(at // length) * length].append(value)
    return {key: (len(item), sum(item), min(item), max(item)) for key, item in grouped.items()}
