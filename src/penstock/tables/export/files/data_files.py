"""The data files of a job below its root, and what their footers tell under the key `penstock` (RULES L6).

Of a batch it is what `flow.route.type_files` notes; of a compacted file the same of every file whose rows it holds.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import InvariantError
from penstock.flow.route.type_files import FOOTER_KEY
from penstock.lake.storage import NotFoundError, Storage
from penstock.tables.export.ledger.names import FinalName, is_own_output, parse_final_name, type_and_day

FOOTERS_AT_ONCE = 16
DAMAGED_FILE = "the file is damaged or not of Penstock: put a good copy back, or delete its day as a whole"
COMPACTED = "compacted"
VERSION = 1

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that readers see, by its place and name; `name` is None for an output of compaction or of a replay."""

    path: str
    type: str
    day: str
    size_bytes: int
    name: FinalName | None
    modified_at: datetime
    """When it got its name, where a rename is a copy."""


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says of itself."""

    rows: int
    schema: pa.Schema
    facts: Facts
    """Empty if the file has no word of ours."""

    @property
    def source(self) -> str | None:
        """The staged name of a compacted or replayed file."""
        return self.facts.get("source")


def files_of_type(storage: Storage, name: str, job: str, spaces: Collection[str]) -> Iterator[DataFile]:
    """The files of a type that this job wrote; other jobs may have theirs in the same folders."""
    for entry in storage.list(name):
        place = type_and_day(entry.path)
        if place is None or place[0] != name:
            continue
        parsed = parse_final_name(entry.path)
        if is_own_output(entry.path, job) or (parsed is not None and parsed.space in spaces):
            yield DataFile(entry.path, *place, entry.size_bytes, parsed, entry.modified_at)


def read_footer(storage: Storage, path: str) -> Footer:
    """Raises `NotFoundError` for a file that is gone and `InvariantError` for one that is no Parquet of ours."""
    try:
        with storage.open_reader(path) as source:
            metadata = pq.read_metadata(source)
        words = (metadata.metadata or {}).get(FOOTER_KEY.encode())
        facts = {} if words is None else json.loads(words)
    except (pa.ArrowException, ValueError) as error:
        raise InvariantError(f"cannot read the footer of {path}", detail=str(error), hint=DAMAGED_FILE) from error
    return Footer(metadata.num_rows, plain(metadata.schema.to_arrow_schema()), facts)


def read_footers(storage: Storage, paths: Iterable[str]) -> Iterator[Footer | InvariantError | None]:
    """The footers of files in their order; None for one that is gone."""

    def read(path: str) -> Footer | InvariantError | None:
        try:
            return read_footer(storage, path)
        except NotFoundError:
            return None
        except InvariantError as error:
            return error

    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        yield from pool.map(read, paths)


def plain(schema: pa.Schema) -> pa.Schema:
    """Names and types alone: what else a file notes of its columns is its own."""
    return pa.schema([pa.field(each.name, each.type) for each in schema])


def replaced_facts(path: str, size_bytes: int, footer: Footer) -> list[dict[str, Any]]:
    """What the footer of a compacted file tells of a file whose rows it takes over; nested ones come out flat."""
    if footer.facts.get("kind") == COMPACTED:
        return [dict(each) for each in footer.facts["replaces"]]
    return [{**footer.facts, "path": path, "rows": footer.rows, "size_bytes": size_bytes}]


def compacted_facts(name: str, day: str, source: str, replaces: list[dict[str, Any]]) -> dict[str, str]:
    body = {"v": VERSION, "kind": COMPACTED, "type": name, "day": day, "source": source, "replaces": replaces}
    return {FOOTER_KEY: json.dumps(body, separators=(",", ":"))}
