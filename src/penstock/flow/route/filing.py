"""The last steps of a routed record: computed columns, its day, the files; and the counts of every type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.computed import Faults, compute
from penstock.flow.columns.days import DayBounds, DayRows, event_times, split_by_day
from penstock.flow.columns.fitting import fit_columns, folded
from penstock.flow.route.fanout_flow import FanoutFlow, TypeFlow
from penstock.flow.route.routes import as_in_log
from penstock.flow.route.type_files import TypeFiles
from penstock.flow.rows import BadRows, DecodedRows, bad_rows, rows_without, with_columns
from penstock.flow.write.manifest import Counts, ranges_of
from penstock.flow.write.report import Share, TaskReport
from penstock.flow.write.tally import Tallies, TypeKey
from penstock.job.expressions import Expression


@dataclass(frozen=True, slots=True)
class _Filed:
    """Rows by day, and what could not be filed."""

    days: tuple[DayRows, ...]
    bad: tuple[BadRows, ...]
    event_ms_max: int | None = None


class Filer:
    """Files and counts the rows of every type, and isolates a type that cannot be written."""

    def __init__(self, flow: FanoutFlow) -> None:
        self._flow = flow
        self._bounds = DayBounds(flow.days, flow.now_ms)
        self._columns = {name: _columns_of(kind, flow.columns) for name, kind in flow.types.items()}
        self.tallies = Tallies(flow)
        self.files = TypeFiles(flow)

    def quarantine(self, type_key: TypeKey, bad: BadRows) -> None:
        rows = self.tallies.quarantined(type_key, BadRows(as_in_log(bad.kafka), bad.errors))
        if rows is not None:
            with self.tallies.writing:
                self.files.add(type_key, None, rows, rows.column("offset").to_numpy())

    def file(self, type_key: TypeKey, rows: DecodedRows) -> None:
        """Write decoded rows of a type in offset order."""
        filed = _Filed((), ())
        with self.files.isolated(type_key):
            filed = self._filed(self._flow.types[type_key.type], rows)
        # Outside of the isolation: this may write waiting rows of another type.
        self.tallies.add(type_key, Share(event_ms_max=filed.event_ms_max))
        for bad in filed.bad:
            self.quarantine(type_key, bad)
        for day in filed.days:
            count = day.rows.num_rows
            replayed = ranges_of(day.offsets.tolist()) if self._flow.replay_run is not None else ()
            self.tallies.add(type_key, Share(Counts(written=count), days={day.day: count}, replayed=replayed))
            if not self._flow.dry:
                with self.tallies.writing:
                    self.files.add(type_key, day.day, day.rows, day.offsets)

    def finish(self) -> TaskReport:
        with self.tallies.writing:
            staged = self.files.finish()
        return self.tallies.report(staged, self.files.failed)

    def _filed(self, kind: TypeFlow, rows: DecodedRows) -> _Filed:
        assert kind.target is not None
        computed = compute(rows, self._columns[kind.name])
        good = computed.rows
        faults: Faults = {}
        times = event_times(kind.event_time, good, faults)
        faults |= self._bounds.outside(times, good.kafka.column("timestamp"))
        body = fit_columns(with_columns(good.columns, computed.columns), kind.target)
        offsets = good.kafka.column("offset")
        kept = rows_without(good.kafka.num_rows, faults)
        if len(kept) < good.kafka.num_rows:
            chosen = pa.array(kept, pa.int64())
            body, times, offsets = body.take(chosen), times.take(chosen), offsets.take(chosen)
        event_ms_max = pc.max(times.cast(pa.int64())).as_py() // 1_000 if len(kept) else None
        return _Filed(
            days=tuple(split_by_day(body, times, offsets)),
            bad=(computed.bad, bad_rows(good.kafka, faults)),
            event_ms_max=event_ms_max,
        )


def merged(parts: Sequence[DecodedRows]) -> DecodedRows:
    """Rows of one type that were decoded in several parts, in offset order."""
    if len(parts) == 1:
        return parts[0]
    kafka = pa.concat_batches([part.kafka for part in parts])
    order = pc.array_sort_indices(kafka.column("offset"))
    return DecodedRows(pa.concat_batches([part.columns for part in parts]).take(order), kafka.take(order))


def _columns_of(kind: TypeFlow, columns: Mapping[str, Expression]) -> dict[str, Expression]:
    """The computed columns that its files have."""
    if kind.target is None:
        return {}
    in_files = frozenset(map(folded, kind.target.names))
    return {name: expression for name, expression in columns.items() if folded(name) in in_files}
