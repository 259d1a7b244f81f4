"""What a verification is asked for, and what a kind of table gives to be checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from penstock.job.place import place_columns
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition, Slice
from penstock.proof.files import Quarantine, RowSource
from penstock.proof.findings import Unproven, Violation
from penstock.proof.incarnations import TopicIncarnations
from penstock.proof.invariants import Slices, Span, States, spans
from penstock.proof.places import PlaceIndex

SAMPLE_RECORDS = 10_000
OFFSETS_PER_PASS_MAX = 8_000_000

Progress = Callable[[str, int, int], None]
"""Receives what is read, and how many of how many are done."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Which records have their values compared: about so many, drawn with the seed, or all of them (None)."""

    records: int | None = SAMPLE_RECORDS
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Depth:
    """How far a verification goes, and in which steps."""

    deep: bool = True
    """Whether the records of the log are read."""
    progress: Progress | None = None
    offsets_per_pass_max: int = OFFSETS_PER_PASS_MAX
    values: Sample | None = None
    """Which records are decoded again to compare values; None: none."""
    every_entry: bool = False
    """Whether `--all` was given."""
    published: bool = False
    """Whether the topic is read that the table is published to."""

    def tell(self, step: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(step, done, total)


Rewrite = Callable[[Slice, Iterable[pa.RecordBatch], Path], Iterator[RowSource]]
"""Writes the rows that the job would write for records of this slice, below an empty folder."""


@dataclass(frozen=True)
class Subject:
    """One version of the table or tables of a job, as its kind gives it to be checked."""

    job: JobSpec
    version: int
    states: States
    slices: Slices
    incarnations: TopicIncarnations
    quarantine: Quarantine
    replay_unfinished: bool = False
    sources: tuple[RowSource, ...] = ()
    """Every table with a row per record; none of a kind whose rows are not records."""
    rows_written: int = 0
    """How many rows the sources have by the totals, those ahead of the job's positions not counted."""
    faults: tuple[str, ...] = ()
    """What else the kind found wrong with the rows; `violations` names their places, `warnings` is not wrong."""
    violations: tuple[Violation, ...] = ()
    warnings: tuple[str, ...] = ()
    rewrite: Rewrite | Unproven | None = None
    """How to write rows again to compare values, or why that cannot be done."""
    every_record_has_a_row: bool = True
    """Whether a record that is not in quarantine must give a row when it is written again."""

    @cached_property
    def spans(self) -> Mapping[Partition, tuple[Span, ...]]:
        return {each: spans(each, state, self.slices.get(each, ())) for each, state in self.states.items()}

    @cached_property
    def index(self) -> PlaceIndex:
        return PlaceIndex(self.incarnations, self.spans, self.sources)

    @property
    def quarantined(self) -> int:
        """How many rows are in quarantine by the totals."""
        return sum(state.totals.quarantined - state.totals.replayed for state in self.states.values())

    @property
    def place_remedy(self) -> str:
        """What lets rows be identified that do not carry their place."""
        select = self.job.sql.select if self.job.sql is not None else ()
        kept = {part for part, _ in place_columns(self.job.columns, select)}
        if {"partition", "offset"} <= kept:
            return "run the job: it adds the columns"
        return "remove `place: none` from the job file before the first run"
