"""The rollup of the demo: a topic of metrics as Telegraf writes them, and every window of them closed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import polars as pl

from penstock.embedded.sample import create_topic, produce_keyed, produce_values
from penstock.embedded.sample_metrics import WINDOWS, MetricSample, end_markers, metric_records, rollup_job
from penstock.tables.registry import load_job
from penstock.verify import Sample, VerifyReport, verify

TOPIC = "telegraf"
PARTITIONS = 2
SAMPLE = MetricSample(records=20_000, series=300)
JOB_FILE = "rollups.yaml"


@dataclass(frozen=True, slots=True)
class RollupReport:
    """What became of the metrics."""

    points: int
    """In the topic, without those that only move time on."""
    windows: dict[str, int]
    """Closed windows by interval, each of one series."""
    points_in_windows: dict[str, int]
    """By interval: each point is in one window of each."""
    example: str
    """A closed window, in words."""
    verified: VerifyReport

    @property
    def ok(self) -> bool:
        counted = self.points_in_windows
        return self.verified.ok and bool(counted) and set(counted.values()) == {self.points}

    def as_json(self) -> dict[str, object]:
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "verified"}
        return {"ok": self.ok, **values, "verify": self.verified.as_json()}


def produce_metrics(bootstrap: str, folder: Path) -> Path:
    """Send the metrics, and after them what moves event time past their last window; return the job file."""
    create_topic(bootstrap, TOPIC, PARTITIONS)
    produce_keyed(bootstrap, TOPIC, metric_records(SAMPLE))
    produce_values(bootstrap, TOPIC, end_markers(SAMPLE, PARTITIONS), PARTITIONS)
    job_path = folder / JOB_FILE
    job_path.write_text(rollup_job(bootstrap, TOPIC, str(_table(folder))))
    return job_path


def look_at_windows(folder: Path) -> RollupReport:
    """Read the closed windows back, and compare them with the log."""
    windows = pl.read_delta(str(_table(folder))).with_columns(pl.col("interval").cast(pl.Enum(WINDOWS)))
    by_interval = windows.group_by("interval").agg(pl.len(), pl.col("count").sum()).sort("interval")
    return RollupReport(
        points=SAMPLE.points,
        windows=dict(by_interval.select("interval", "len").iter_rows()),
        points_in_windows=dict(by_interval.select("interval", "count").iter_rows()),
        example=_in_words(windows.sort("series", "interval", "window_start").row(0, named=True)),
        verified=verify(load_job(folder / JOB_FILE), values=Sample(None)),
    )


def _in_words(row: dict[str, object]) -> str:
    at = f"{row['window_start']:%Y-%m-%d %H:%M}"
    return f"{row['series']}, {row['interval']} from {at}: count {row['count']}, min {row['min']}, max {row['max']}"


def _table(folder: Path) -> Path:
    return folder / "lake" / "rollups"
