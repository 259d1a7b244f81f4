"""What a Spark task reports to the driver: of each type its share in each partition."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.columns.seen_types import from_json, merged, to_json
from penstock.flow.write.manifest import (
    Counts,
    EpochMarks,
    PartitionKey,
    Ranges,
    Reason,
    StagedFile,
    offsets_of,
    ranges_of,
)

UNROUTED = ""
"""Stands for the records that belong to no type: all of a job without types; else tombstones and unknown types that are
dropped or quarantined."""
REPORT_VERSION = 1
ReportT = TypeVar("ReportT")
REPORT_SCHEMA = pa.schema([("report", pa.binary())])


@dataclass(frozen=True, slots=True)
class Share:
    """What became of the records of one type in one partition, or in a task's piece of it."""

    counts: Counts = field(default_factory=Counts)
    """`read` are all its records at or beyond the offset that it takes part from."""
    first: int | None = None
    """The offset of the first of them."""
    event_ms_max: int | None = None
    days: Mapping[str, int] = field(default_factory=dict)
    """Written rows by day."""
    files: tuple[StagedFile, ...] = ()
    quarantine_files: tuple[StagedFile, ...] = ()
    failed: str = ""
    """Why the type could not be written; its files are then left to vacuum."""
    new_fields: str = ""
    """What fields show that its columns lack, as `flow.columns.seen_types` writes it."""
    replayed: Ranges = ()
    """Of a replay: the offsets of the written rows."""
    sums: Mapping[str, int] = field(default_factory=dict)
    """What else a kind of table counts, by name."""

    def __add__(self, other: Share) -> Share:
        return Share(
            counts=self.counts + other.counts,
            first=min(_not_none(self.first, other.first), default=None),
            event_ms_max=max(_not_none(self.event_ms_max, other.event_ms_max), default=None),
            days=_sums(self.days, other.days),
            files=(*self.files, *other.files),
            quarantine_files=(*self.quarantine_files, *other.quarantine_files),
            failed=self.failed or other.failed,
            new_fields=to_json(merged(map(from_json, (self.new_fields, other.new_fields)))),
            replayed=_merged_ranges(self.replayed, other.replayed),
            sums=_sums(self.sums, other.sums),
        )

    def as_failed(self, reason: str) -> Share:
        """Of a type that could not be written: its records are only counted, for they are read again."""
        counts = Counts(read=self.counts.read, skipped=self.counts.skipped)
        # The reason may quote a record, and with it half of a surrogate pair.
        printable = reason.encode("utf-8", "backslashreplace").decode()
        return Share(counts, self.first, failed=printable)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The result of one task: shares by partition and type (`UNROUTED` for what belongs to none)."""

    shares: Mapping[PartitionKey, Mapping[str, Share]] = field(default_factory=dict)
    first_error: str = ""
    reasons: tuple[Reason, ...] = ()
    """Why records were quarantined; a bounded number of kinds."""
    marks: EpochMarks = field(default_factory=dict)
    refused: Mapping[PartitionKey, Mapping[int, str]] = field(default_factory=dict)
    """Records found bad after their bytes were dropped, with the reason; the batch runs again without them."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long the task read, decoded and wrote. With `sql:` the other two are part of reading."""


class Stopwatch:
    """Adds up how long the blocks take that it is entered for."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._begun


def report_batch(report: object) -> pa.RecordBatch:
    """The one row that a task gives to the driver."""
    # Reports are needed until their batch is committed, and are not stored.
    encoded = msgspec.msgpack.encode((REPORT_VERSION, report))
    return pa.RecordBatch.from_arrays([pa.array([encoded])], schema=REPORT_SCHEMA)


def decode_report(data: bytes, kind: type[ReportT]) -> ReportT:
    """The report in what a task sent; raises `UserError` if the task runs another version of Penstock."""
    try:
        version, report = msgspec.msgpack.decode(data, type=tuple[int, msgspec.Raw])
        if version != REPORT_VERSION:
            raise msgspec.DecodeError(f"version {version}, not {REPORT_VERSION}")
        return msgspec.msgpack.decode(report, type=kind)
    except msgspec.DecodeError as error:
        raise UserError(
            "a Spark task reported in a form that this process does not know",
            detail=str(error),
            hint="install the same version of Penstock on every executor",
        ) from error


def _merged_ranges(one: Ranges, other: Ranges) -> Ranges:
    return ranges_of([*offsets_of(one), *offsets_of(other)]) if one and other else one or other


def _sums(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    counts = Counter(one)
    counts.update(other)
    return {name: count for name, count in sorted(counts.items()) if count}


def _not_none(*numbers: int | None) -> list[int]:
    return [number for number in numbers if number is not None]
