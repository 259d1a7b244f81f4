"""The files of a load: found under paths, each with a mark by which a load knows that it has it already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal, TypeAlias, get_args
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from penstock.errors import UserError
from penstock.flow.columns.fitting import folded
from penstock.flow.columns.partition_values import NULL_FOLDER, partition_value
from penstock.flow.columns.times import timestamps
from penstock.job.schema import job_type_name
from penstock.lake.delta.active_files import active_files, refuse_deletion_vectors
from penstock.lake.delta.keys import fingerprint
from penstock.lake.delta.library import library_errors
from penstock.lake.storage import open_storage

LoadFormat: TypeAlias = Literal["parquet", "csv", "json", "delta"]
FORMATS: tuple[LoadFormat, ...] = get_args(LoadFormat)
_NAMES: dict[LoadFormat, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"),
    "csv": (".csv",),
    "json": (".json", ".jsonl", ".ndjson"),
}
_SUFFIXES = {suffix: kind for kind, suffixes in _NAMES.items() for suffix in suffixes}

_COMPRESSED = (".gz", ".bz2", ".zst", ".xz", ".zip")


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
    constants: Mapping[str, pa.Scalar] = field(default_factory=dict)
    """Columns with one value for all rows: of folders `name=value`, or the partition values of a Delta table."""

    @property
    def name(self) -> str:
        return f"{self.folder.rstrip('/')}/{self.path}"

    @property
    def mark(self) -> str:
        return f"{fingerprint(f'{self.name} {self.size_bytes} {self.changed}'):016x}"


def source_files(
    paths: Sequence[str], wanted: str | None, options: Mapping[str, str], fields: pa.Schema
) -> list[SourceFile]:
    """Every file under the paths, in their order and the order of names; `fields` are those that rows may have."""
    found = [file for path in paths for file in _under(path, wanted, options, fields)]
    if not found:
        raise UserError(f"there is nothing to load under {', '.join(paths)}", hint=f"formats: {', '.join(FORMATS)}")
    return found


def _under(path: str, wanted: str | None, options: Mapping[str, str], fields: pa.Schema) -> Iterator[SourceFile]:
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
        if any(map(_is_hidden, entry.path.split("/"))):
            continue
        *_, inner, outer = ("", "", *PurePosixPath(entry.path).suffixes)
        if inner in _SUFFIXES and outer in _COMPRESSED:
            raise UserError(
                f"{folder.rstrip('/')}/{entry.path} is compressed", hint="decompress it: its rows would be missing"
            )
        kind = wanted or _SUFFIXES.get(outer)
        if kind is None:
            continue
        changed, constants = entry.modified_at.isoformat(), _folder_values(folder, entry.path, fields)
        yield SourceFile(folder, entry.path, _checked(kind), entry.size_bytes, changed, options, constants)


def _is_hidden(name: str) -> bool:
    """Whether Spark and Hive pass over a file or folder of this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _folder_values(folder: str, path: str, fields: pa.Schema) -> dict[str, pa.Scalar]:
    """The values of folders `name=value`.

    Above the path that the load names, only folders count whose name is a column: others need not be meant as one.
    """
    kinds = {folded(each.name): each.type for each in fields}
    values: dict[str, pa.Scalar] = {}
    for is_below, part in [(False, each) for each in folder.split("/")] + [
        (True, each) for each in path.split("/")[:-1]
    ]:
        head, sign, text = part.partition("=")
        name = unquote(head)
        if sign and name and (is_below or folded(name) in kinds):
            values[name] = _folder_value(
                f"{folder.rstrip('/')}/{path}", part, text, kinds.get(folded(name), pa.string())
            )
    return values


def _folder_value(file: str, part: str, text: str, kind: pa.DataType) -> pa.Scalar:
    if text == NULL_FOLDER:
        return pa.scalar(None, kind)
    try:
        value = unquote(text, errors="strict")
        # As in records, a time without a zone is UTC.
        return (
            timestamps(pa.array([value])).cast(kind)[0] if pa.types.is_timestamp(kind) else pa.scalar(value).cast(kind)
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UserError(
            f"{file}: the folder {part} does not fit its column, which is {job_type_name(kind)}",
            detail=str(error),
            hint="folders `name=value` are columns of the files below them: rename the folder, or load another one",
        ) from error


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
