"""How a job and its Delta table fit together: place, partition columns, columns, and what the table requires."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake import DeltaTable

from penstock.errors import UserError
from penstock.flow.columns.fitting import by_folded_name, conflict, folded, grown, new_paths
from penstock.job.schema import job_type_name
from penstock.job.spec import NewColumnPolicy, TableSpec

DAY_SECONDS = 86_400
_UNIT_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": DAY_SECONDS, "week": 7 * DAY_SECONDS}
_INTERVAL = re.compile(r"(?:interval\s+)?([0-9]{1,18})\s+(second|minute|hour|day|week)s?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace(TableSpec):
    """Where a Delta table lies, and how it is laid out if it has to be created."""

    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    quarantine_url: str = ""
    """Where its quarantine lies, if not in its own folder."""
    files_url: str = ""
    """Where its files lie, if not next to its log; the process that stages them checks them before the commit."""
    numbers: tuple[str, ...] = ()
    """Names of what it keeps of each partition beyond positions, tokens and totals."""


def fit(
    table: pa.Schema, job: pa.Schema, policy: NewColumnPolicy, path: str, always: Collection[str] = ()
) -> pa.Schema:
    """The columns that the table lacks; raises for one of another type, or one that the policy forbids.

    Names are compared without case, as Delta does; names that differ in case alone are refused. The policy does not
    apply to columns in `always`.
    """
    by_folded_name(table, f"the table at {path}")
    by_folded_name(job, "the job")
    difference = conflict(table, job)
    if difference is not None:
        raise UserError(
            f"column {difference.path} is {job_type_name(difference.one)} in the table at {path}, "
            f"the job writes {job_type_name(difference.other)}",
            hint="change the job's schema, or write to a new table",
        )
    missing = missing_columns(table, job)
    forbidden = [] if policy == "add" else [name for name in new_paths(table, job) if name not in always]
    if forbidden:
        raise UserError(
            f"the table at {path} has no column {', '.join(forbidden)}",
            detail=f"`on.new_column: {policy}` does not let the job add it",
            hint="set `on.new_column: add`, or add the column to the table",
        )
    return missing


def missing_columns(table: pa.Schema, job: pa.Schema) -> pa.Schema:
    """The columns to add: those that the table lacks, and those of its own that get further fields, whole."""
    types = {field.name: field.type for field in table}
    return pa.schema([field for field in grown(table, job) if types.get(field.name) != field.type])


def refuse_foreign_demands(handle: DeltaTable, spec: TablePlace) -> None:
    """Refuse a table that requires of its writers what Penstock does not do (RULES C8)."""
    reasons = [*_partition_demands(handle, spec), *_property_demands(handle), *_column_demands(handle)]
    if reasons:
        raise UserError(
            f"the table at {spec.path} cannot be written by Penstock",
            detail="; ".join(reasons),
            hint="write to a table without these, or let Penstock create it",
        )


def _partition_demands(handle: DeltaTable, spec: TablePlace) -> list[str]:
    columns = list(handle.metadata().partition_columns)
    if [*map(folded, columns)] == [*map(folded, spec.partition_by)]:
        return []
    return [f"it is partitioned by {columns}, the job by {list(spec.partition_by)}"]


def _property_demands(handle: DeltaTable) -> list[str]:
    reasons = []
    for name, setting in handle.metadata().configuration.items():
        if name.startswith("delta.constraints."):
            reasons.append(f"it has the constraint {name.removeprefix('delta.constraints.')}")
        elif name == "delta.columnMapping.mode" and setting != "none":
            reasons.append("it uses column mapping")
        elif name == "delta.checkpointPolicy" and setting != "classic":
            reasons.append(f"its checkpoints are not in one file ({name} = {setting})")
        elif name == "delta.setTransactionRetentionDuration":
            reasons.append(f"it forgets positions ({name})")
        elif name == "delta.logRetentionDuration" and (interval_seconds(setting) or 0) < DAY_SECONDS:
            reasons.append(f"its log retention is under a day ({name} = {setting})")
    return reasons


def _column_demands(handle: DeltaTable) -> list[str]:
    reasons = []
    for column in handle.schema().fields:
        if not column.nullable:
            reasons.append(f"column {column.name} refuses null")
        if any(name.startswith(("delta.generationExpression", "delta.identity")) for name in column.metadata):
            reasons.append(f"column {column.name} is generated")
    return reasons


def interval_seconds(text: str) -> int | None:
    """Read a Delta interval such as `interval 30 days`; None for what cannot be read."""
    match = _INTERVAL.fullmatch(text.strip())
    return int(match[1]) * _UNIT_SECONDS[match[2].lower()] if match else None


def deleted_file_retention_seconds(handle: DeltaTable) -> float:
    """For how long removed files stay; for ever if the table's property cannot be read."""
    text = handle.metadata().configuration.get("delta.deletedFileRetentionDuration", "interval 1 week")
    seconds = interval_seconds(text)
    return float("inf") if seconds is None else seconds
