"""Where a row comes from: a load, a record that the log has lost, or a place that the log can tell of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import polars as pl
import pyarrow as pa

from penstock.lake.delta.table import Table
from penstock.logs.log import Log, Partition, Slice
from penstock.proof.incarnations import UNKNOWN_TOPIC
from penstock.proof.log import LogFacts
from penstock.proof.subject import Subject
from penstock.tables.keyed.generations import Transactions, generations_of
from penstock.tables.keyed.layout import Layout, log_order, order_columns, sequences, tiebreaks
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.single.facts import TableFacts


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verification has read of a job; the tombstones after the table."""

    subject: Subject
    facts: TableFacts
    spec: KeyedSpec
    tombstones: Table | None


KNOWN, LOST, LOADED = "known", "lost", "loaded"
_RANGES = {"tiebreak": pl.Int64, "start": pl.Int64, "end": pl.Int64, "lost": pl.Boolean}


@dataclass(frozen=True, slots=True)
class Places:
    """The offsets that the table has read, and which of them the log still has."""

    slices: tuple[Slice, ...]
    """Those to read again."""
    ranges: pl.DataFrame
    """By tiebreak the sequences `[start, end)`, and whether records of them are lost."""
    unknown: bool
    """Whether rows may be of other jobs, or of topics whose names are forgotten: then no place tells anything."""

    @property
    def any_lost(self) -> bool:
        return self.unknown or bool(self.ranges["lost"].any())

    def placed(self, layout: Layout, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with their `origin`: `KNOWN` if the log has the record at their place, or never had one."""
        sequence, tiebreak = order_columns(layout)[-2:]
        ranges = self.ranges.rename({"tiebreak": tiebreak, "start": sequence})
        at = rows.sort(sequence).join_asof(ranges, on=sequence, by=tiebreak, check_sortedness=False)
        lost = (pl.col("lost") & (pl.col(sequence) < pl.col("end"))).fill_null(False) | self.unknown
        origin = pl.when(pl.col(sequence) < 0).then(pl.lit(LOADED)).when(lost).then(pl.lit(LOST))
        return at.select(*rows.columns, origin.otherwise(pl.lit(KNOWN)).alias("origin"))

    def exposed(self, layout: Layout, loads: bool) -> pl.Expr:
        """Whether a record that the log has lost, or a load, may have deleted what a retained record gives."""
        if layout.sequence is not None or self.unknown:
            return pl.lit(self.any_lost or (loads and layout.delete is not None))
        lost_end = self.ranges.filter("lost")["end"].max()
        return pl.col(log_order(layout)) < pl.lit(lost_end, pl.Int64)


def places_of(evidence: Evidence, log: Log, said: LogFacts) -> Places:
    job, facts = evidence.subject.job.name, evidence.facts
    numbers = facts.table.transactions()
    slices: list[Slice] = []
    ranges: list[tuple[int, int, int, bool]] = []
    for partition, state in sorted(facts.states.items()):
        if state.position is None or state.origin is None:
            continue
        bounds, low, high = said.bounds.get(partition), state.position, state.position
        if bounds is not None:
            low, high = min(max(state.origin, bounds.first), state.position), min(state.position, bounds.end)
        if low < high:
            slices.append(Slice(partition, low, high, low))
        if bounds is None or log.compacted(partition.topic) is not False:
            low = high = state.position
        for start, end in ((state.origin, low), (low, high), (high, state.position)):
            ranges += _ranges(numbers, job, partition, start, end, (start, end) != (low, high))
    forgotten = any(partition.topic == UNKNOWN_TOPIC for partition in facts.states)
    frame = pl.DataFrame(ranges, _RANGES, orient="row").sort("start")
    return Places(tuple(slices), frame, forgotten or bool(facts.incarnations.others))


def _ranges(
    numbers: Transactions, job: str, partition: Partition, start: int, end: int, lost: bool
) -> Iterator[tuple[int, int, int, bool]]:
    """The offsets `[start, end)` as sequences, cut where generations begin."""
    generations = generations_of(numbers, job, partition)
    tiebreak = tiebreaks(pa.chunked_array([[0]]), partition.topic, partition.number)[0].as_py()
    cuts = sorted({start, end, *(at for at, _ in generations if start < at < end)})
    for first, after in pairwise(cuts):
        sequence = sequences(pa.array([first]), generations)[0].as_py()
        yield tiebreak, sequence, sequence + after - first, lost
