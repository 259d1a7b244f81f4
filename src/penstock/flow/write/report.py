"""What a Spark task tells the driver about its work, as one JSON text: of each type its share in each partition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow as pa

from penstock.flow.columns.seen_types import from_json, merged, to_json
from penstock.flow.write.manifest import Counts, Marks, PartitionKey, Reason, StagedFile, decode_marks, encode_marks
from penstock.flow.write.offset_ranges import Ranges, offsets_of, ranges_of

UNROUTED = ""
"""Stands for the records that belong to no type: all of a job without types; else tombstones and unknown types that are
dropped or quarantined."""
REPORT_SCHEMA = pa.schema([("report", pa.string())])


@dataclass(frozen=True, slots=True)
class Share:
    """What became of the records of one type in one partition, or in a task's piece of it."""

    counts: Counts = field(default_factory=Counts)
    """`read` are all its records at or beyond the offset that it takes part from."""
    first: int | None = None
    """The offset of the first of them."""
    size_bytes: int = 0
    """Of their values, as they lie in the log."""
    event_ms_max: int | None = None
    days: Mapping[str, int] = field(default_factory=dict)
    """Written rows by day."""
    files: tuple[StagedFile, ...] = ()
    quarantine_files: tuple[StagedFile, ...] = ()
    failed: str = ""
    """Why the type could not be written; its files are then left to vacuum."""
    new_fields: Mapping[str, Any] = field(default_factory=dict)
    """What fields show that its columns lack, as `flow.seen_types` writes it."""
    replayed: Ranges = ()
    """Of a replay: the offsets of the written rows."""

    def __add__(self, other: Share) -> Share:
        return Share(
            counts=self.counts + other.counts,
            first=_least(self.first, other.first),
            size_bytes=self.size_bytes + other.size_bytes,
            event_ms_max=_most(self.event_ms_max, other.event_ms_max),
            days={day: self.days.get(day, 0) + other.days.get(day, 0) for day in {**self.days, **other.days}},
            files=(*self.files, *other.files),
            quarantine_files=(*self.quarantine_files, *other.quarantine_files),
            failed=self.failed or other.failed,
            new_fields=to_json(merged([from_json(self.new_fields), from_json(other.new_fields)])),
            replayed=ranges_of([*offsets_of(self.replayed), *offsets_of(other.replayed)]),
        )


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The result of one task: shares by partition and type (`UNROUTED` for what belongs to none)."""

    shares: Mapping[PartitionKey, Mapping[str, Share]] = field(default_factory=dict)
    first_error: str = ""
    reasons: tuple[Reason, ...] = ()
    """Why records were quarantined; a bounded number of kinds."""
    marks: Marks = field(default_factory=dict)
    refused: Mapping[PartitionKey, Mapping[int, str]] = field(default_factory=dict)
    """Records that turned out bad when their bytes were gone, with the reason: the batch is run again without them."""


def report_batch(report: TaskReport) -> pa.RecordBatch:
    """The one row that a task gives to the driver."""
    return pa.RecordBatch.from_arrays([pa.array([encode_report(report)])], schema=REPORT_SCHEMA)


def encode_report(report: TaskReport) -> str:
    shares = [
        [topic, number, name, share]
        for (topic, number), named in report.shares.items()
        for name, share in named.items()
    ]
    body = {
        "v": 1,
        "shares": shares,
        "first_error": report.first_error,
        "reasons": report.reasons,
        "marks": encode_marks(report.marks),
        "refused": [[topic, number, list(bad.items())] for (topic, number), bad in report.refused.items()],
    }
    return json.dumps(body, default=_members)


def _members(value: Any) -> dict[str, Any]:
    """A dataclass for JSON; `asdict` copies all that is below it too, which takes ten times as long."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


def decode_report(text: str) -> TaskReport:
    body: dict[str, Any] = json.loads(text)
    if body["v"] != 1:
        raise ValueError(f"task report of version {body['v']}")
    shares: dict[PartitionKey, dict[str, Share]] = {}
    for topic, number, name, share in body["shares"]:
        shares.setdefault((topic, number), {})[name] = _share(share)
    reasons = tuple(Reason(**each) for each in body["reasons"])
    refused = {(topic, number): dict(bad) for topic, number, bad in body["refused"]}
    return TaskReport(shares, body["first_error"], reasons, decode_marks(body["marks"]), refused)


def _share(body: Mapping[str, Any]) -> Share:
    plain = Share(**{**body, "counts": Counts(**body["counts"])})
    return replace(
        plain,
        files=tuple(StagedFile(**each) for each in body["files"]),
        quarantine_files=tuple(StagedFile(**each) for each in body["quarantine_files"]),
        replayed=tuple((start, end) for start, end in body["replayed"]),
    )


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _most(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
