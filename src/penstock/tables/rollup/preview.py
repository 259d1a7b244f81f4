"""The dry run of a rollup: the partials of a batch, and which of its points come too late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.environment import Environment
from penstock.flow.stage import Stage
from penstock.job.spec import JobSpec, job_of
from penstock.lake.delta.opening import find_table
from penstock.logs.log import Batch
from penstock.staging.reports import Gathered
from penstock.tables.preview import Output, local_flow, partitions_of, read_rows
from penstock.tables.rollup.batch_task import partials_flow, partials_stage
from penstock.tables.rollup.numbers import close_state
from penstock.tables.rollup.schema import written_schema
from penstock.tables.rollup.spec import RollupSpec, partials_job


class RollupPreview:
    def __init__(self, job: JobSpec) -> None:
        self._job = job_of(job, RollupSpec)
        self.log = find_table(partials_job(self._job).table, job.name)

    def stage(self, batch: Batch, folder: str) -> Stage:
        flow = partials_flow(self._job.table, partials_job(self._job), batch, Environment(), "")
        return partials_stage(local_flow(flow, folder))

    def add_columns(self, gathered: Gathered) -> bool:
        return False

    def outputs(self, gathered: Gathered, folder: str) -> Iterator[Output]:
        shares = list(gathered.all_shares())
        files = [file for share in shares for file in share.files]
        rows = read_rows(f"{folder}/rows", files, written_schema(self._job.table.aggregates))
        sums = sum((Counter(share.sums) for share in shares), Counter[str]())
        points = f"{sums.pop('points', 0)} points in {rows.num_rows} windows of {self._job.table.finest.name}"
        left_out = [f"{count} {name}" for name, count in sorted(sums.items()) if count]
        notes = [points + (f"; left out: {', '.join(left_out)}" if left_out else ""), *self._late(rows)]
        sources = dict.fromkeys(rows.schema.names, "points")
        yield Output("", rows, partitions_of(files), sources=sources, notes=tuple(notes))

    def _late(self, rows: pa.Table) -> Iterator[str]:
        """How many points belong to windows that are closed, by interval."""
        windows = find_table(self._job.table.windows_place, self._job.name)
        if self.log is None or windows is None:
            return
        closes = close_state(self._job.name, self.log.transactions(), windows.transactions())
        starts_ms = pc.divide(rows["window_start"].cast(pa.int64()), 1000)
        for window in self._job.table.windows:
            closed = pc.less(starts_ms, window.start_of(closes.closed_until_ms))
            if late := pc.sum(rows["count"].filter(closed)).as_py():
                yield f"{late} points are late for closed windows of {window.name} (`late: {self._job.table.late}`)"


open_preview = RollupPreview
