"""Opens, finds and creates the Delta tables of jobs."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from deltalake import DeltaTable, Schema

from penstock.environment import Environment
from penstock.errors import OutcomeUnknownError, TransientError, UserError
from penstock.job.spec import NewColumnPolicy, TableSpec
from penstock.lake.delta.entry import first_entry_text
from penstock.lake.delta.keys import is_position_of, other_jobs
from penstock.lake.delta.library import ConflictError, MissingTableError, library_errors, tried_once
from penstock.lake.delta.log_files import entry_path
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.schema import TablePlace, fit, refuse_foreign_demands
from penstock.lake.delta.table import DeltaLog
from penstock.lake.delta.vectors import VECTORS_PROPERTY
from penstock.storage import open_storage

UNUSED_VERSION_MAX = 100
"""So many attempts of a first run may fail; a table with more commits is not searched."""
FIELDS_PROPERTY = "penstock.schema"
"""The table property with the fields of a job with `schema: infer`, as a job file states them."""
CREATED = "create"
"""The kind of the commit that creates a table."""


def open_table(place: TableSpec, job: str, environment: Environment | None = None) -> DeltaLog:
    """Open an existing table; `MissingTableError` if there is none."""
    spec = _delta_place(place)
    return _checked(spec, job, _load(spec), environment or Environment())


def find_table(place: TableSpec, job: str, environment: Environment | None = None) -> DeltaLog | None:
    try:
        return open_table(place, job, environment)
    except MissingTableError:
        return None


def open_or_create(
    place: TableSpec,
    job: str,
    schema: pa.Schema,
    policy: NewColumnPolicy,
    environment: Environment | None = None,
    always: Collection[str] = (),
) -> DeltaLog:
    """Open the table, create it from the job if it is missing, and add the job's columns that it lacks.

    The policy does not apply to those in `always`. A table of this job that nothing was read into follows the job file.
    """
    spec = _delta_place(place)
    environment = environment or Environment()
    try:
        handle = _load(spec)
    except MissingTableError:
        handle = _create(spec, job, schema)
        environment.at_step("created")
    if _differs(handle, spec, schema) and is_unused(table := DeltaLog(spec, job, handle, environment)):
        if FIELDS_PROPERTY in handle.metadata().configuration and FIELDS_PROPERTY in spec.properties:
            raise TransientError(f"another process has inferred the schema of the table at {spec.path} just now")
        _replace(table, schema)
        handle = _load(spec)
    table = _checked(spec, job, handle, environment)
    if len(fit(table.schema, schema, policy, spec.path, always)):
        table.add_columns(schema)
        table.refresh()
    return table


def is_unused(table: DeltaLog) -> bool:
    """Whether this job created the table, and neither rows nor other jobs came to it, as after a failed first run."""
    if table.version > UNUSED_VERSION_MAX:
        return False
    numbers = table.transactions()
    positions = [key for key in numbers if is_position_of(table.job, key)]
    if other_jobs(numbers, table.job) or any(numbers[key] != numbers.get(f"{key}#origin") for key in positions):
        return False
    return not table.active_files() and any(commit.kind == CREATED for commit in table.commits())


def _load(spec: TablePlace) -> DeltaTable:
    with library_errors(spec.path):
        return DeltaTable(spec.path, storage_options=dict(spec.storage_options))


def _checked(spec: TablePlace, job: str, handle: DeltaTable, environment: Environment) -> DeltaLog:
    refuse_foreign_demands(handle, spec)
    # From here on all columns are spelled as in the table.
    return DeltaLog(replace(spec, partition_by=tuple(handle.metadata().partition_columns)), job, handle, environment)


def _differs(handle: DeltaTable, spec: TablePlace, schema: pa.Schema) -> bool:
    """Whether the table was created for another job file."""
    stored = handle.metadata()
    columns = [(field.name, field.type) for field in pa.schema(handle.schema().to_arrow())]
    return (
        columns != [(field.name, field.type) for field in schema]
        or tuple(stored.partition_columns) != spec.partition_by
        or any(stored.configuration.get(name) != value for name, value in spec.properties.items())
    )


def _replace(table: DeltaLog, schema: pa.Schema) -> None:
    """Give an unused table the columns and properties of the job file; it keeps its id."""
    # Only as the next version: what another process commits meanwhile stays.
    entry = _first_entry(table.spec, table.job, schema, table.id)
    table.storage().put_if_absent(entry_path(table.version + 1), entry.encode())


def _first_entry(spec: TablePlace, job: str, schema: pa.Schema, table_id: str | None = None) -> str:
    with TemporaryDirectory() as folder:
        made = _created_by_library(replace(spec, path=folder, storage_options={}), job, schema)
        text = Path(folder, entry_path(0)).read_text(encoding="utf-8")
    text = text if table_id is None else text.replace(str(made.metadata().id), table_id)
    return first_entry_text(text, with_vectors=spec.properties.get(VECTORS_PROPERTY) == "true")


def _delta_place(place: TableSpec) -> TablePlace:
    if isinstance(place, TablePlace):
        return place
    return TablePlace(place.path, place.storage_options)


def _create(spec: TablePlace, job: str, schema: pa.Schema) -> DeltaTable:
    """The table, created unless another process creates it first."""
    if spec.properties.get(VECTORS_PROPERTY) != "true":
        return _created_by_library(spec, job, schema)
    # Whether it is there is seen by opening it.
    with suppress(OutcomeUnknownError):
        storage = open_storage(spec.path, spec.storage_options)
        storage.put_if_absent(entry_path(0), _first_entry(spec, job, schema).encode())
    return _load(spec)


def _created_by_library(spec: TablePlace, job: str, schema: pa.Schema) -> DeltaTable:
    try:
        with library_errors(spec.path):
            return DeltaTable.create(
                spec.path,
                Schema.from_arrow(schema),
                mode="ignore",
                partition_by=list(spec.partition_by),
                configuration=dict(spec.properties),
                # Properties that only Penstock reads are not known to the library.
                raise_if_key_not_exists=False,
                storage_options=dict(spec.storage_options),
                commit_properties=tried_once(Provenance(kind=CREATED, job=job).metadata),
            )
    except ConflictError:
        return _load(spec)
    except MissingTableError as error:
        raise UserError(
            f"cannot create the table at {spec.path}", detail=error.detail, hint="check the path and its permissions"
        ) from error
