"""The table of tombstones beside a keyed table: written before the data commit, kept for a while (RULES K2)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence

import polars as pl
import pyarrow as pa
from deltalake.transaction import AddAction, RemoveAction

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.keys import fingerprint
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import Change, Table, find_table, open_or_create
from penstock.tables.keyed.files import files_number
from penstock.tables.keyed.layout import BUCKET
from penstock.tables.keyed.merging.chunks import ChunkStore, file_schema
from penstock.tables.keyed.merging.tombstones import newest, tombstone_schema, unexpired
from penstock.tables.keyed.spec import KeyedSpec

VERSIONS_TO_LAND_MAX = 1000
TOMBSTONE_FILES_MAX = 8
"""Of a bucket, beside whole chunks: the next batch that touches it puts them together."""


class Tombstones:
    """The deleted keys of one table; the table of them is made with the first one."""

    def __init__(self, job: JobSpec[KeyedSpec], data: Table) -> None:
        self._job = job
        self._data = data
        self._environment = data.environment
        self._table: Table | None = None

    def table(self) -> Table | None:
        """The table of tombstones; an error if it is not the one that commits of the data table have written to."""
        if self._table is None:
            spec = self._job.table
            found = find_tombstones(spec, self._job.name, self._environment)
            for fault in tombstones_faults(spec, self._data, found):
                raise UserError(
                    f"the deleted keys of the table at {spec.path} are lost",
                    detail=f"{fault}: an older update that arrives late would bring a deleted row back",
                    hint=f"restore the folder {spec.tombstones_path}; to accept that, set `tombstone_retention` to "
                    "less than the time since the last delete",
                )
            self._table = found
        return self._table

    def numbers(self, files: Sequence[StagedFile], schema: pa.Schema) -> dict[str, int]:
        """What a data commit that deletes says: in which table of tombstones, which this makes, and when."""
        if not files:
            return {}
        now_ms = int(self._environment.now() * 1000)
        there = fingerprint(self._created(schema).id)
        return {tombstones_key(self._job.name): there, deleted_key(self._job.name): now_ms}

    def files(self) -> dict[int, tuple[ActiveFile, ...]]:
        """The files of the newest version, by bucket."""
        table = self.table()
        if table is None:
            return {}
        table.refresh()
        return files_by_bucket(table.active_files())

    def append(self, files: Sequence[StagedFile], schema: pa.Schema, removed: Sequence[str] = ()) -> None:
        """Make staged tombstones count, before the deletes themselves do; those that are there already stay once.

        `removed` are files that the staged ones contain. One that another process has removed meanwhile is in a file of
        that process too: a delete that is there twice does no harm.
        """
        if not files and not removed:
            return
        table = self._created(schema)

        def decide() -> Change | None:
            known = {each.path: each for each in table.active_files()}
            gone = [known[path] for path in removed if path in known]
            added = [each for each in files if each.path not in known]
            return _change(table, added, gone, "tombstones") if gone or added else None

        table.swap(decide)

    def _created(self, schema: pa.Schema) -> Table:
        table = self.table()
        if table is None:
            columns = tombstone_schema(self._job.table.layout, file_schema(schema))
            place = _place(self._job.table)
            table = open_or_create(place, self._job.name, columns, NewColumnPolicy.ADD, self._environment)
            self._table = table
        return table

    def expire(self) -> int:
        """Put the tombstones of each bucket together, without those whose time is over; returns how many went."""
        table = self.table()
        if table is None:
            return 0
        oldest = self._environment.now() - self._job.table.tombstone_retention_seconds
        return sum(self._expire_bucket(table, bucket, files, oldest) for bucket, files in self.files().items())

    def _expire_bucket(self, table: Table, bucket: int, before: tuple[ActiveFile, ...], oldest: float) -> int:
        spec, layout = self._job.table, self._job.table.layout
        paths = [each.path for each in before]
        schema = file_schema(table.schema)
        store = ChunkStore(spec.tombstones_path, dict(spec.storage_options), schema, layout, spec.chunk_rows)
        there = pl.concat([pl.DataFrame(pl.from_arrow(store.read(path))) for path in paths])
        kept = newest(layout, unexpired(there, oldest))
        if len(kept) == len(there) and len(paths) == 1:
            return 0
        version_max = table.version + VERSIONS_TO_LAND_MAX
        files = list(store.write(kept.to_arrow().cast(schema), bucket, lambda: _name(version_max)))

        def decide() -> Change | None:
            active = {each.path: each for each in table.active_files()}
            if not all(path in active for path in paths) or table.version >= version_max:
                return None
            return _change(table, files, [active[path] for path in paths], "expired")

        return len(there) - len(kept) if table.swap(decide) else 0


def tombstones_key(job: str) -> str:
    """The fingerprint of the table of tombstones that the deletes of a job are in."""
    return f"{job}#tombstones"


def deleted_key(job: str) -> str:
    """When a commit of a job last deleted keys, in milliseconds since 1970."""
    return f"{job}#deleted_ms"


def find_tombstones(spec: KeyedSpec, job: str, environment: Environment) -> Table | None:
    return find_table(_place(spec), job, environment)


def tombstones_faults(spec: KeyedSpec, data: Table, found: Table | None) -> Iterator[str]:
    """Why a table of tombstones, opened after the data, is not the one that deletes within the retention are in."""
    there = None if found is None else fingerprint(found.id)
    oldest_ms = (data.environment.now() - spec.tombstone_retention_seconds) * 1000
    numbers = data.transactions()
    for key, expected in numbers.items():
        job = key.removesuffix(tombstones_key(""))
        if job != key and expected != there and numbers.get(deleted_key(job), 0) >= oldest_ms:
            is_what = "is gone" if found is None else "was made again"
            yield f"job {job} has deleted rows, and the table of tombstones at {spec.tombstones_path} {is_what}"


def files_by_bucket(files: Iterable[ActiveFile]) -> dict[int, tuple[ActiveFile, ...]]:
    found: dict[int, list[ActiveFile]] = {}
    for file in files:
        found.setdefault(int(file.values[0] or 0), []).append(file)
    return {bucket: tuple(sorted(held, key=lambda file: file.path)) for bucket, held in sorted(found.items())}


def _place(spec: KeyedSpec) -> TablePlace:
    return TablePlace(spec.tombstones_path, spec.storage_options, spec.shared, partition_by=(BUCKET,))


def small_tombstones(files: Sequence[ActiveFile], chunk_rows: int) -> frozenset[str]:
    """The files of a bucket to put together: every batch reads all of them. Whole chunks stay as they are."""
    small = [each.path for each in files if each.rows is None or each.rows < chunk_rows]
    return frozenset(small) if len(small) >= TOMBSTONE_FILES_MAX else frozenset()


def _change(table: Table, added: Sequence[StagedFile], removed: Sequence[ActiveFile], kind: str) -> Change:
    actions: list[AddAction | RemoveAction] = [table.remove_action(file) for file in removed]
    actions += [table.add_action(file) for file in added]
    return Change(actions, files_number(table, added, removed), Provenance(kind=kind, job=table.job).metadata)


def _name(version_max: int) -> str:
    return compacted_name(version_max, uuid.uuid4().hex)
