"""The rows of one file of a load, and its columns as far as they can be told without reading all of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from penstock.errors import UserError
from penstock.flow.columns.fitting import by_folded_name, folded
from penstock.flow.columns.seen_types import NewFields
from penstock.flow.decode import Decoder
from penstock.lake.storage import open_storage
from penstock.tables.keyed.loading.sources import SourceFile

BATCH_ROWS = 131_072
BLOCK_BYTES = 16 * 1024 * 1024
"""Read of a text at a time. It bounds a row of CSV; a line of JSON may be longer."""
HEADER_BYTES = 64 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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


def read_rows(file: SourceFile, fields: pa.Schema, decoder: Decoder | None) -> Iterator[FileRows]:
    """The rows of a file. Text is read in the types that the fields have; JSON by the decoder, as records are."""
    storage = open_storage(file.folder, file.options)
    with storage.open_reader(file.path) as opened:
        match file.format:
            case "parquet" | "delta":
                parquet = pq.ParquetFile(opened, pre_buffer=False, coerce_int96_timestamp_unit="us")
                yield from numbered(parquet.iter_batches(BATCH_ROWS, use_threads=False))
            case "csv":
                yield from _csv_rows(opened, fields)
            case "json":
                assert decoder is not None
                yield from _json_rows(opened, decoder)


def file_schema(file: SourceFile, fields: pa.Schema) -> pa.Schema:
    """The columns of a file; of JSON only those of its folders: what its objects have is known once they are read."""
    try:
        own = _own_schema(file, fields)
    except (pa.ArrowException, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file.name} cannot be read as {file.format}", detail=str(error)) from error
    there = by_folded_name(own, file.name)
    constants = [(name, each.type) for name, each in file.constants.items() if folded(name) not in there]
    return pa.schema([*own, *constants])


def _own_schema(file: SourceFile, fields: pa.Schema) -> pa.Schema:
    if file.format == "json":
        return pa.schema([])
    with open_storage(file.folder, file.options).open_reader(file.path) as opened:
        if file.format != "csv":
            return pq.read_schema(opened)
        names = _csv_names(opened)
        known = _types_of(names, fields)
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            opened.seek(0)
            known |= {field.name: field.type for field in _open_csv(opened, {}, unknown).schema}
        return pa.schema([(name, known[name]) for name in names])


def _csv_rows(opened: IO[bytes], fields: pa.Schema) -> Iterator[FileRows]:
    types = _types_of(_csv_names(opened), fields)
    opened.seek(0)
    return numbered(_open_csv(opened, types, list(types)))


def _csv_names(opened: IO[bytes]) -> list[str]:
    """The first line that is not empty."""
    text = io.TextIOWrapper(io.BufferedReader(cast(io.RawIOBase, opened), HEADER_BYTES), "utf-8-sig", newline="")
    try:
        return next((names for names in csv.reader(text) if names), [])
    finally:
        # The file itself is to stay open.
        text.detach().detach()


def _types_of(names: Sequence[str], fields: pa.Schema) -> dict[str, pa.DataType]:
    """The types of columns that are fields, under the names that they have in a file."""
    kinds = {folded(field.name): field.type for field in fields}
    return {name: kinds[folded(name)] for name in names if folded(name) in kinds}


def _open_csv(opened: IO[bytes], types: Mapping[str, pa.DataType], names: Sequence[str]) -> Any:
    """Columns of a file, all of them if none is named. Only an empty field without quotes is null: `NA` is a text."""
    return pacsv.open_csv(
        opened,
        read_options=pacsv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        parse_options=pacsv.ParseOptions(newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(
            column_types=dict(types),
            include_columns=list(names),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _json_rows(opened: IO[bytes], decoder: Decoder) -> Iterator[FileRows]:
    last = 0
    for lines in _lines(opened):
        texts = {number: text for number, line in enumerate(lines, last + 1) if (text := line.strip())}
        last += len(lines)
        if 1 in texts:
            texts[1] = texts[1].removeprefix(_BYTE_ORDER_MARK)
        columns = [pa.array(texts.keys(), pa.int64()), pa.array(texts.values(), pa.binary())]
        decoded = decoder.decode(pa.RecordBatch.from_arrays(columns, names=["offset", "value"]))
        bad = zip(decoded.bad.kafka.column("offset").to_pylist(), decoded.bad.errors.to_pylist(), strict=True)
        places = decoded.rows.kafka.column("offset").to_pylist()
        yield FileRows(decoded.rows.columns, places, dict(bad), decoded.new_fields)


def _lines(opened: IO[bytes]) -> Iterator[list[bytes]]:
    """The lines of a file, as many at a time as a block holds."""
    rest = b""
    while block := opened.read(BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        yield lines
    yield [rest]
