"""The section `table.delta` of a job file: partition columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from penstock.flow.columns.partition_values import can_partition
from penstock.job.faults import KeyPath, nearest, shown, unless_secret
from penstock.job.reader import SpecReader
from penstock.job.spec import JobSpec
from penstock.job.values import Texts
from penstock.lake.delta.schema import TablePlace
from penstock.tables.rows import OutputColumns, complete_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpec(TablePlace):
    kind = "delta"
    unused = ()
    partition_by: Texts = ()

    def complete(self, job: JobSpec[Self], reader: SpecReader) -> JobSpec[Self]:
        job, output = complete_rows(job, reader, has_place=True)
        at: KeyPath = ("table", self.kind, "partition_by")
        names = [name.casefold() for name in self.partition_by]
        for index, name in enumerate(self.partition_by):
            if name.casefold() in names[:index]:
                reader.note((*at, index), f"{shown(name)} is named twice")
            else:
                _check_partition_column(name, output, (*at, index), reader)
        if output.complete and names and {*names} >= {name.casefold() for name in output.types}:
            reader.note(at, "every column is a partition column: the files would be empty")
        return job


def _check_partition_column(name: str, output: OutputColumns, at: KeyPath, reader: SpecReader) -> None:
    if not output.has(name):
        hint = nearest(name, output.types) or f"columns: {', '.join(map(unless_secret, list(output.types)[:20]))}"
        reader.note(at, f"the table has no column {shown(name)}", hint)
    kind = output.types.get(name)
    if kind is not None and not can_partition(kind):
        type_name = "binary" if pa.types.is_binary(kind) else str(kind).partition("<")[0]
        reader.note(at, f"{shown(name)} cannot partition a table: it is a {type_name}", "use another column")
