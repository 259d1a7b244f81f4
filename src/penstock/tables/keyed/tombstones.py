"""The table of tombstones beside a keyed table: written before the data commit, kept for a while (RULES K2)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import polars as pl
import pyarrow as pa
from deltalake.transaction import AddAction, RemoveAction

from penstock.environment import Environment
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.lake.delta.active_files import active_files
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import Change, Table, find_table, open_or_create
from penstock.lake.proposal import RemovedFile
from penstock.tables.keyed.layout import BUCKET
from penstock.tables.keyed.merging.chunks import ChunkStore, file_schema
from penstock.tables.keyed.merging.tombstones import DELETED_AT, newest, tombstone_schema
from penstock.tables.keyed.spec import KeyedSpec

VERSIONS_TO_LAND_MAX = 1000


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

    def files(self) -> dict[int, tuple[str, ...]]:
        """The files of the newest version, by bucket."""
        table = self.table()
        if table is None:
            return {}
        table.refresh()
        found: dict[int, list[str]] = {}
        for each in active_files(table.handle):
            found.setdefault(int(each.values[0] or 0), []).append(each.path)
        return {bucket: tuple(sorted(paths)) for bucket, paths in found.items()}

    def append(self, files: Sequence[StagedFile], schema: pa.Schema) -> None:
        """Make staged tombstones count, before the deletes themselves do; those that are there already stay once."""
        if not files:
            return
        table = self.table()
        if table is None:
            columns = tombstone_schema(self._job.table.layout, file_schema(schema))
            place = _place(self._job.table)
            table = open_or_create(place, self._job.name, columns, NewColumnPolicy.ADD, self._environment)
            self._table = table
        target = table

        def decide() -> Change | None:
            known = {each.path for each in active_files(target.handle)}
            fresh = [each for each in files if each.path not in known]
            actions: list[AddAction | RemoveAction] = [target.add_action(each) for each in fresh]
            return Change(actions, {}, _told(target, "tombstones")) if fresh else None

        target.swap(decide)

    def expire(self) -> int:
        """Put the tombstones of each bucket together, without those whose time is over; returns how many went."""
        table = self.table()
        if table is None:
            return 0
        oldest = datetime.fromtimestamp(self._environment.now(), UTC) - timedelta(
            seconds=self._job.table.tombstone_retention_seconds
        )
        return sum(self._expire_bucket(table, bucket, paths, oldest) for bucket, paths in self.files().items())

    def _expire_bucket(self, table: Table, bucket: int, paths: tuple[str, ...], oldest: datetime) -> int:
        spec, layout = self._job.table, self._job.table.layout
        schema = file_schema(table.schema)
        store = ChunkStore(spec.tombstones_path, dict(spec.storage_options), schema, layout, spec.chunk_rows)
        there = pl.concat([pl.DataFrame(pl.from_arrow(store.read(path))) for path in paths])
        kept = newest(layout, there.filter(pl.col(DELETED_AT) >= oldest))
        if len(kept) == len(there) and len(paths) == 1:
            return 0
        version_max = table.version + VERSIONS_TO_LAND_MAX
        files = list(store.write(kept.to_arrow().cast(schema), bucket, lambda: _name(version_max)))

        def decide() -> Change | None:
            active = {each.path: each for each in active_files(table.handle)}
            if not all(path in active for path in paths) or table.version >= version_max:
                return None
            values = {BUCKET: str(bucket)}
            gone = [RemovedFile(path, active[path].size_bytes, values) for path in paths]
            return Change([*map(table.remove_action, gone), *map(table.add_action, files)], {}, _told(table, "expired"))

        return len(there) - len(kept) if table.swap(decide) else 0


def _place(spec: KeyedSpec) -> TablePlace:
    return TablePlace(
        spec.tombstones_path, spec.quarantine_path, spec.storage_options, spec.shared, partition_by=(BUCKET,)
    )


def _name(version_max: int) -> str:
    return compacted_name(version_max, uuid.uuid4().hex)


def _told(table: Table, kind: str) -> dict[str, object]:
    return Provenance(kind=kind, job=table.job).metadata
