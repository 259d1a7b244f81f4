"""The files of a load: found under paths, each with a mark by which a load knows that it has it already; their rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO, Literal, NamedTuple, TypeAlias, cast, get_args
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from deltalake import DeltaTable

from penstock.errors import UserError
from penstock.flow.columns.fitting import folded
from penstock.flow.columns.partition_values import NULL_FOLDER, partition_value
from penstock.flow.columns.seen_types import NewFields
from penstock.flow.columns.times import timestamps
from penstock.flow.decode import Decoder
from penstock.job.schema import job_type_name
from penstock.lake.delta.files import active_files, refuse_deletion_vectors
from penstock.lake.delta.keys import fingerprint
from penstock.lake.delta.library import library_errors
from penstock.lake.storage import open_storage

LoadFormat: TypeAlias = Literal["parquet", "csv", "json", "delta"]
FORMATS: tuple[LoadFormat, ...] = get_args(LoadFormat)
_SUFFIXES: Mapping[str, LoadFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".xz", ".zip")
BATCH_ROWS = 131_072
BLOCK_BYTES = 16 * 1024 * 1024
"""Read of a text at a time. It bounds a row of CSV; a line of JSON may be longer."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file; it travels to the task that reads it."""

    folder: str
    path: str
    format: str
    size_bytes: int
    changed: str
    """Another text for other content: the time of the last change, or the partition values in a table."""
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
    files = [file for path in paths for file in _under(path, wanted, options, fields)]
    if not files:
        raise UserError(f"there is nothing to load under {', '.join(paths)}", hint=f"formats: {', '.join(FORMATS)}")
    return files


def _under(path: str, wanted: str | None, options: Mapping[str, str], fields: pa.Schema) -> Iterator[SourceFile]:
    entries = sorted(open_storage(path, options).list(), key=lambda entry: entry.path)
    if wanted == "delta" or any(entry.path.startswith("_delta_log/") for entry in entries):
        yield from _of_delta(path, options)
        return
    folder = path
    if not entries:
        folder, _, name = path.rpartition("/")
        folder = folder or "."
        entries = [entry for entry in open_storage(folder, options).list() if entry.path == name]
    for entry in entries:
        if any(map(_is_hidden, entry.path.split("/"))):
            continue
        file = f"{folder.rstrip('/')}/{entry.path}"
        *_, inner, outer = ("", "", *PurePosixPath(entry.path).suffixes)
        if inner in _SUFFIXES and outer in _COMPRESSED:
            raise UserError(f"{file} is compressed", hint="decompress it: its rows would be missing")
        kind = wanted or _SUFFIXES.get(outer)
        if kind is not None:
            changed, constants = entry.modified_at.isoformat(), _folder_values(file, folder, fields)
            yield SourceFile(folder, entry.path, kind, entry.size_bytes, changed, options, constants)


def _is_hidden(name: str) -> bool:
    """Whether Spark and Hive pass over a file or folder of this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _folder_values(file: str, folder: str, fields: pa.Schema) -> dict[str, pa.Scalar]:
    """The values of folders `name=value` in the path of a file.

    Above the folder that the load names, only those count whose name is a column: others need not be meant as one.
    """
    kinds = {folded(each.name): each.type for each in fields}
    values: dict[str, pa.Scalar] = {}
    above = len(folder.rstrip("/").split("/"))
    for depth, part in enumerate(file.split("/")[:-1]):
        head, sign, text = part.partition("=")
        name = unquote(head)
        if not sign or not name or (depth < above and folded(name) not in kinds):
            continue
        kind = kinds.get(folded(name), pa.string())
        try:
            values[name] = pa.scalar(None, kind) if text == NULL_FOLDER else _folder_value(text, kind)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise UserError(
                f"{file}: the folder {part} does not fit its column, which is {job_type_name(kind)}",
                detail=str(error),
                hint="folders `name=value` are columns of the files below them: rename the folder, or load another one",
            ) from error
    return values


def _folder_value(text: str, kind: pa.DataType) -> pa.Scalar:
    value = unquote(text, errors="strict")
    # As in records, a time without a zone is UTC.
    return timestamps(pa.array([value])).cast(kind)[0] if pa.types.is_timestamp(kind) else pa.scalar(value).cast(kind)


def _of_delta(path: str, options: Mapping[str, str]) -> Iterator[SourceFile]:
    with library_errors(path):
        handle = DeltaTable(path, storage_options=dict(options))
        refuse_deletion_vectors(handle, path)
        names = handle.metadata().partition_columns
        for file in sorted(active_files(handle), key=lambda file: file.path):
            constants = dict(zip(names, file.scalars, strict=True))
            texts = [partition_value(value) for value in file.scalars]
            yield SourceFile(path, file.path, "parquet", file.size_bytes, f"{texts}", options, constants)


class FileRows(NamedTuple):
    """Some rows of a file."""

    columns: pa.RecordBatch
    numbers: Sequence[int]
    """The places of the rows in the file, counted from 1."""
    faults: Mapping[int, str]
    """By its place, why a row cannot be read: it is not in `columns`."""
    new_fields: NewFields
    """What JSON objects have that the fields lack."""


def numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[FileRows]:
    first = 1
    for batch in batches:
        yield FileRows(batch, range(first, first + batch.num_rows), {}, {})
        first += batch.num_rows


def read_rows(file: SourceFile, fields: pa.Schema, decoder: Decoder | None, every_column: bool) -> Iterator[FileRows]:
    """The rows of a file. Text is read in the types that the fields have; JSON by the decoder, as records are.

    Columns of CSV that are no fields are read only with `every_column`: their types are those of the first block.
    """
    with open_storage(file.folder, file.options).open_reader(file.path) as opened:
        if decoder is not None:
            yield from _json_rows(opened, decoder)
        elif file.format == "csv":
            yield from _csv_rows(opened, fields, every_column)
        else:
            parquet = pq.ParquetFile(opened, pre_buffer=False, coerce_int96_timestamp_unit="us")
            yield from numbered(parquet.iter_batches(BATCH_ROWS, use_threads=False))


def _csv_rows(opened: IO[bytes], fields: pa.Schema, every_column: bool) -> Iterator[FileRows]:
    """Only an empty field without quotes is null: `NA` is a text."""
    text = io.TextIOWrapper(io.BufferedReader(cast(io.RawIOBase, opened)), "utf-8-sig", newline="")
    names = next((names for names in csv.reader(text) if names), [])
    # The file itself is to stay open.
    text.detach().detach()
    opened.seek(0)
    kinds = {folded(field.name): field.type for field in fields}
    types = {name: kinds[folded(name)] for name in names if folded(name) in kinds}
    conversion = pacsv.ConvertOptions(
        column_types=types,
        include_columns=names if every_column else list(types),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    reading = pacsv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    return numbered(pacsv.open_csv(opened, reading, pacsv.ParseOptions(newlines_in_values=True), conversion))


def _json_rows(opened: IO[bytes], decoder: Decoder) -> Iterator[FileRows]:
    last = 0
    buffered = io.BufferedReader(cast(io.RawIOBase, opened))
    while lines := buffered.readlines(BLOCK_BYTES):
        texts = {number: text for number, line in enumerate(lines, last + 1) if (text := line.strip())}
        last += len(lines)
        if 1 in texts:
            texts[1] = texts[1].removeprefix(_BYTE_ORDER_MARK)
        columns = [pa.array(texts.keys(), pa.int64()), pa.array(texts.values(), pa.binary())]
        decoded = decoder.decode(pa.RecordBatch.from_arrays(columns, names=["offset", "value"]))
        bad = zip(decoded.bad.kafka.column("offset").to_pylist(), decoded.bad.errors.to_pylist(), strict=True)
        places = decoded.rows.kafka.column("offset").to_pylist()
        yield FileRows(decoded.rows.columns, places, dict(bad), decoded.new_fields)
