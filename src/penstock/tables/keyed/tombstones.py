"""The table of tombstones beside a keyed table: written before the data commit, kept for a while (RULES K2)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import polars as pl
import pyarrow as pa
from deltalake.transaction import AddAction, RemoveAction

from penstock.environment import Environment
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import Change, Table, find_table, open_or_create
from penstock.lake.proposal import RemovedFile
from penstock.tables.keyed.layout import BUCKET
from penstock.tables.keyed.merging.chunks import ChunkStore, file_schema
from penstock.tables.keyed.merging.tombstones import newest, tombstone_schema, unexpired
from penstock.tables.keyed.spec import KeyedSpec

VERSIONS_TO_LAND_MAX = 1000
TOMBSTONE_FILES_MAX = 8
"""Of a bucket, beside whole chunks: the next batch that touches it puts them together."""


class Tombstones:
    """The deleted keys of one table; the table of them is made with the first one."""

    def __init__(self, job: JobSpec[KeyedSpec], environment: Environment) -> None:
        self._job = job
        self._environment = environment
        self._table: Table | None = None

    def table(self) -> Table | None:
        if self._table is None:
            self._table = find_table(_place(self._job.table), self._job.name, self._environment)
        return self._table

    def files(self) -> dict[int, tuple[ActiveFile, ...]]:
        """The files of the newest version, by bucket."""
        table = self.table()
        if table is None:
            return {}
        table.refresh()
        found: dict[int, list[ActiveFile]] = {}
        for each in table.active_files():
            found.setdefault(int(each.values[0] or 0), []).append(each)
        return {bucket: tuple(sorted(files, key=lambda file: file.path)) for bucket, files in found.items()}

    def append(self, files: Sequence[StagedFile], schema: pa.Schema, removed: Sequence[str] = ()) -> None:
        """Make staged tombstones count, before the deletes themselves do; those that are there already stay once.

        `removed` are files that the staged ones contain. One that another process has removed meanwhile is in a file of
        that process too: a delete that is there twice does no harm.
        """
        if not files and not removed:
            return
        table = self.table()
        if table is None:
            columns = tombstone_schema(self._job.table.layout, file_schema(schema))
            place = _place(self._job.table)
            table = open_or_create(place, self._job.name, columns, NewColumnPolicy.ADD, self._environment)
            self._table = table
        target = table

        def decide() -> Change | None:
            known = {each.path: each for each in target.active_files()}
            actions: list[AddAction | RemoveAction] = [
                target.remove_action(_removed(known[path])) for path in removed if path in known
            ]
            actions += [target.add_action(each) for each in files if each.path not in known]
            return Change(actions, {}, _told(target, "tombstones")) if actions else None

        target.swap(decide)

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
            gone = [_removed(active[path]) for path in paths]
            return Change([*map(table.remove_action, gone), *map(table.add_action, files)], {}, _told(table, "expired"))

        return len(there) - len(kept) if table.swap(decide) else 0


def _place(spec: KeyedSpec) -> TablePlace:
    return TablePlace(
        spec.tombstones_path, spec.quarantine_path, spec.storage_options, spec.shared, partition_by=(BUCKET,)
    )


def small_tombstones(files: Sequence[ActiveFile], chunk_rows: int) -> frozenset[str]:
    """The files of a bucket to put together: every batch reads all of them. Whole chunks stay as they are."""
    small = [each.path for each in files if each.rows is None or each.rows < chunk_rows]
    return frozenset(small) if len(small) >= TOMBSTONE_FILES_MAX else frozenset()


def _removed(file: ActiveFile) -> RemovedFile:
    return RemovedFile(file.path, file.size_bytes, {BUCKET: file.values[0]})


def _name(version_max: int) -> str:
    return compacted_name(version_max, uuid.uuid4().hex)


def _told(table: Table, kind: str) -> dict[str, object]:
    return Provenance(kind=kind, job=table.job).metadata
