"""The dry run of an export: the rows of each type by day."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from penstock.environment import Environment
from penstock.flow.columns.fitting import grown, new_paths
from penstock.flow.compile import visible_schema
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import FanoutFlow, TypeFlow
from penstock.flow.stage import Stage
from penstock.flow.write.report import Share
from penstock.job.expressions import to_text
from penstock.job.spec import DAY_FOLDER, JobSpec, job_of
from penstock.logs.log import Batch
from penstock.staging.reports import Gathered
from penstock.tables.export.flow import local_flow, new_columns
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.spec import ExportSpec
from penstock.tables.preview import Output, partitions_of, read_rows


class ExportPreview:
    """The logs of types, or before the first run the job file, give the columns; records may bring others."""

    def __init__(self, job: JobSpec) -> None:
        self._logs = ExportLogs(job_of(job, ExportSpec), Environment())
        self.log = self._logs.find_job_log()
        self._logs.type_logs()
        self._brought: dict[str, pa.Schema] = {}
        self._flow: FanoutFlow

    def stage(self, batch: Batch, folder: str) -> Stage:
        flow = local_flow(self._logs, batch, self._logs.export.types, f"{folder}/rows", f"{folder}/bad")
        self._flow = replace(flow, types={name: self._with_columns(kind) for name, kind in flow.types.items()})
        return fanout_stage(self._flow)

    def _with_columns(self, kind: TypeFlow) -> TypeFlow:
        fields = self._logs.fields_of(kind.name, self._brought.get(kind.name))
        if fields is None:
            return kind
        target = grown(self._logs.columns_of(kind.name) or (), visible_schema(self._logs.job, fields))
        return replace(kind, decoded=fields if self._logs.job.decode.format == "json" else kind.decoded, target=target)

    def add_columns(self, gathered: Gathered) -> bool:
        added = False
        for name, kind in self._flow.types.items():
            fields = gathered.new_fields(name)
            if fields and (kind.decoded is None or self._logs.job.on.new_column == "add"):
                columns = new_columns(self._logs.job, kind, fields)
                self._brought[name] = grown(self._brought.get(name, ()), columns)
                added = added or kind.decoded is None or len(columns) > 0
        return added

    def outputs(self, gathered: Gathered, folder: str) -> Iterator[Output]:
        for name, kind in self._flow.types.items():
            shares = [named[name] for named in gathered.shares.values() if name in named]
            if not shares:
                continue
            share = sum(shares, Share())
            before = self._logs.columns_of(name) or self._logs.fields_of(name)
            columns = kind.target if kind.target is not None else pa.schema([])
            brought = new_paths(before or (), self._brought.get(name, ()))
            rows = read_rows(f"{folder}/rows", share.files, columns.append(pa.field(DAY_FOLDER, pa.date32())))
            notes = [f"cannot be written: {share.failed}"] if share.failed else []
            if self._logs.export.types[name].rotation is not None:
                notes.append("written when `rotation` is due")
            sources = {DAY_FOLDER: f"day of {to_text(kind.event_time)}"}
            yield Output(name, rows, partitions_of(share.files), tuple(brought), sources, tuple(notes))


open_preview = ExportPreview
