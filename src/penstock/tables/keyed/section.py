"""The section `table.keyed` of a job file: keys, sequence, deletes and sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from penstock.flow.columns.fitting import folded
from penstock.job.expressions import KafkaField
from penstock.job.faults import KeyPath, nearest, shown
from penstock.job.reader import Reader
from penstock.job.rows import Output, complete_rows
from penstock.job.sections import KindSection
from penstock.job.spec import JobSpec, TombstonePolicy
from penstock.tables.keyed.layout import RESERVED, KeyPart, Layout, is_key_type
from penstock.tables.keyed.spec import LAYOUT_PROPERTY, KeyedSpec, encode_layout

AT: KeyPath = ("table", KeyedSpec.kind)
_INPUTS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "prefix": (pa.types.is_string, "prefix takes text"),
    "timeslice": (pa.types.is_timestamp, "timeslice takes a timestamp"),
    "round": (lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind), "round takes a number"),
}


class KeyedSection(KindSection[KeyedSpec]):
    """One Delta table with one row for each key."""

    spec = KeyedSpec

    def complete(self, job: JobSpec[KeyedSpec], reader: Reader) -> JobSpec[KeyedSpec]:
        job, output = complete_rows(job, reader)
        _check_keys(job.table.layout, output, reader)
        _check_settings(job.table, output, reader)
        stated = job.on.tombstone if reader.states("on", "tombstone") else None
        if stated not in (None, TombstonePolicy.FILTER):
            hint = "remove it: a record without a value deletes the row of its key; or filter: it is left out"
            reader.note(("on", "tombstone"), "has no meaning for a keyed table", hint)
        if reader.findings:
            return job
        layout = replace(job.table.layout, log_partition=_log_partition(job))
        properties = {LAYOUT_PROPERTY: encode_layout(layout)}
        return replace(
            job, table=replace(job.table, layout=layout, properties=properties, filter_tombstones=stated is not None)
        )


def _log_partition(job: JobSpec[KeyedSpec]) -> str | None:
    """The partition key that is the partition of the log, as a column of `kafka.partition` is."""
    if job.sql is not None:
        return None
    is_partition = [name for name, expression in job.columns.items() if expression == KafkaField("partition")]
    return next((part.column for part in job.table.layout.partition_keys if str(part) in is_partition), None)


def _check_keys(layout: Layout, output: Output, reader: Reader) -> None:
    if reader.states(*AT, "row_keys") and not layout.row_keys:
        reader.note((*AT, "row_keys"), "names no column")
    known: set[str] = set()
    parts = [((*AT, "partition_keys", index), part) for index, part in enumerate(layout.partition_keys)]
    parts += [((*AT, "row_keys", index), KeyPart(name)) for index, name in enumerate(layout.row_keys or ())]
    for at, part in parts:
        if str(part).casefold() in known:
            reader.note(at, f"{shown(str(part))} is named twice")
        else:
            _check_part(part, output, at, reader)
        known.add(str(part).casefold())
    for name in output.types:
        if folded(name) in RESERVED:
            reader.note(AT, f"the job has a column {name}, which keyed tables keep for themselves", "rename it")


def _check_part(part: KeyPart, output: Output, at: KeyPath, reader: Reader) -> None:
    kind = _column(part.column, output, at, reader)
    takes, reason = _INPUTS.get(
        part.function, (is_key_type, "it is no whole number, text, bytes, boolean, date or time")
    )
    if kind is not None and not takes(kind):
        reader.note(at, f"{shown(part.column)} cannot be part of a key: {reason}")
    elif kind is not None and part.function == "coalesce" and not _is_value(part.argument, kind):
        reader.note(at, f"the default {part.argument!r} is no value of the column {part.column}")


def _column(name: str, output: Output, at: KeyPath, reader: Reader) -> pa.DataType | None:
    """The type of a column where it is known."""
    if not output.has(name):
        reader.note(at, f"the table has no column {shown(name)}", nearest(name, output.types))
    return output.types.get(name)


def _is_value(value: object, kind: pa.DataType) -> bool:
    try:
        pa.scalar(value).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return False
    return True


def _check_settings(table: KeyedSpec, output: Output, reader: Reader) -> None:
    sequence, delete = table.layout.sequence, table.layout.delete
    if sequence is not None:
        kind = _column(sequence, output, (*AT, "sequence"), reader)
        if kind is not None and not is_key_type(kind):
            reader.note((*AT, "sequence"), "a sequence is a column of whole numbers, text, dates or times")
    if delete is not None:
        kind = _column(delete.column, output, (*AT, "delete"), reader)
        if kind is not None and not _is_value(delete.value, kind):
            message = f"{shown(delete.column)} is compared with {delete.value!r}, which is no value of it"
            reader.note((*AT, "delete"), message)
        if table.bulk:
            reader.note((*AT, "bulk"), "contradicts delete: a bulk load looks up no row that it could delete")
