"""The files of a load: found under paths, each with a mark by which a load knows that it has it already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq
from deltalake import DeltaTable

from penstock.errors import UserError
from penstock.flow.columns.partition_values import partition_value
from penstock.lake.delta.active_files import active_files, refuse_deletion_vectors
from penstock.lake.delta.keys import fingerprint
from penstock.lake.delta.library import library_errors
from penstock.lake.storage import Storage, open_storage

LoadFormat: TypeAlias = Literal["parquet", "csv", "json", "delta"]
FORMATS: tuple[LoadFormat, ...] = get_args(LoadFormat)
BATCH_ROWS = 131_072
_NAMES: dict[LoadFormat, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"),
    "csv": (".csv",),
    "json": (".json", ".jsonl", ".ndjson"),
}
_SUFFIXES = {suffix: kind for kind, suffixes in _NAMES.items() for suffix in suffixes}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file; it travels to the task that reads it."""

    folder: str
    path: str
    format: LoadFormat
    size_bytes: int
    changed: str
    """Another text for other content: the time of the last change, or the version of a table."""
    options: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Columns that are not in the file: the partition values of a Delta table."""

    @property
    def name(self) -> str:
        return f"{self.folder.rstrip('/')}/{self.path}"

    @property
    def mark(self) -> str:
        return f"{fingerprint(f'{self.name} {self.size_bytes} {self.changed}'):016x}"


def source_files(paths: Sequence[str], wanted: str | None, options: Mapping[str, str]) -> list[SourceFile]:
    """Every file under the paths, in their order and the order of names."""
    found = [file for path in paths for file in _under(path, wanted, options)]
    if not found:
        raise UserError(f"there is nothing to load under {', '.join(paths)}", hint=f"formats: {', '.join(FORMATS)}")
    return found


def _under(path: str, wanted: str | None, options: Mapping[str, str]) -> Iterator[SourceFile]:
    storage = open_storage(path, options)
    entries = sorted(storage.list(), key=lambda each: each.path)
    if wanted == "delta" or any(each.path.startswith("_delta_log/") for each in entries):
        yield from _of_delta(path, options)
        return
    folder = path
    if not entries:
        folder, _, name = path.rpartition("/")
        folder = folder or "."
        entries = [each for each in open_storage(folder, options).list() if each.path == name]
    for entry in entries:
        hidden = any(part.startswith(("_", ".")) for part in entry.path.split("/"))
        kind = wanted or _SUFFIXES.get(PurePosixPath(entry.path).suffix)
        if hidden or kind is None:
            continue
        yield SourceFile(folder, entry.path, _checked(kind), entry.size_bytes, entry.modified_at.isoformat(), options)


def _of_delta(path: str, options: Mapping[str, str]) -> Iterator[SourceFile]:
    with library_errors(path):
        handle = DeltaTable(path, storage_options=dict(options))
        refuse_deletion_vectors(handle, path)
        names = handle.metadata().partition_columns
        for file in sorted(active_files(handle), key=lambda each: each.path):
            constants = dict(zip(names, file.scalars, strict=True))
            texts = [partition_value(each) for each in file.scalars]
            yield SourceFile(path, file.path, "parquet", file.size_bytes, f"{texts}", options, constants)


def _checked(kind: str) -> LoadFormat:
    for each in FORMATS:
        if kind == each:
            return each
    raise UserError(f"{kind} is no format of a load", hint=f"one of {', '.join(FORMATS)}")


def read_batches(file: SourceFile, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file; columns of a text format are read in the types that the table has."""
    storage = open_storage(file.folder, file.options)
    with storage.open_reader(file.path) as opened:
        for batch in _batches(file, opened, columns):
            for name, value in file.constants.items():
                batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
            yield batch


def _batches(file: SourceFile, opened: Any, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    match file.format:
        case "parquet" | "delta":
            parquet = pq.ParquetFile(opened, pre_buffer=False, coerce_int96_timestamp_unit="us")
            yield from parquet.iter_batches(BATCH_ROWS, use_threads=False)
        case "csv":
            kinds = pacsv.ConvertOptions(
                column_types={each.name: each.type for each in columns}, strings_can_be_null=True
            )
            yield from pacsv.open_csv(opened, convert_options=kinds)
        case "json":
            options = pajson.ParseOptions(explicit_schema=columns, unexpected_field_behavior="infer")
            yield from pajson.read_json(opened, parse_options=options).to_batches(BATCH_ROWS)


def source_schema(file: SourceFile, columns: pa.Schema, storage: Storage | None = None) -> pa.Schema:
    """The columns of a file."""
    try:
        return _schema(file, columns, storage)
    except pa.ArrowException as error:
        raise UserError(f"{file.name} cannot be read as {file.format}", detail=str(error)) from error


def _schema(file: SourceFile, columns: pa.Schema, storage: Storage | None) -> pa.Schema:
    if file.format in ("parquet", "delta"):
        opened = (storage or open_storage(file.folder, file.options)).open_reader(file.path)
        with opened:
            found = pq.read_schema(opened)
        return pa.schema([*found, *((name, each.type) for name, each in file.constants.items())])
    first = next(read_batches(file, columns), None)
    return columns if first is None else first.schema
