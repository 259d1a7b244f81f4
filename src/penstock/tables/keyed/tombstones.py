"""Deleted keys with the order of their delete, so that an older update cannot restore a row (RULES K2).

They are in a table next to the keyed one, committed before the data and kept for `tombstone_retention`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

import polars as pl
import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name
from penstock.job.spec import JobSpec
from penstock.lake.delta.compact import VERSIONS_TO_LAND_MAX
from penstock.lake.delta.entry import Action
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.keys import fingerprint
from penstock.lake.delta.opening import find_table, open_or_create
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, DeltaLog
from penstock.tables.keyed.files import chunk_store, files_by_bucket, files_number
from penstock.tables.keyed.layout import BUCKET, Layout, order_columns
from penstock.tables.keyed.merging.chunks import ChunkStore, NewName, file_schema, fresh
from penstock.tables.keyed.spec import KeyedSpec

DELETED_AT = "deleted_at"


class Tombstones:
    """The deleted keys of one table; the first delete creates the table of tombstones."""

    def __init__(self, job: JobSpec[KeyedSpec], data: DeltaLog) -> None:
        self._job = job
        self._data = data
        self._environment = data.environment
        self._table: DeltaLog | None = None

    def table(self) -> DeltaLog | None:
        """The table of tombstones; an error if it is not the one that commits of the data table refer to."""
        if self._table is None:
            spec = self._job.table
            self._table = find_table(spec.tombstones_place, self._job.name, self._environment)
            for fault in tombstones_faults(spec, self._data, self._table):
                self._table = None
                raise UserError(
                    f"the deleted keys of the table at {spec.path} are lost",
                    detail=f"{fault}: an older update that arrives late would restore a deleted row",
                    hint=f"restore the folder {spec.tombstones_place.path}; to accept that, set `tombstone_retention` "
                    "to less than the time since the last delete",
                )
        return self._table

    def files(self) -> dict[int, tuple[ActiveFile, ...]]:
        """The files of the newest version, by bucket."""
        table = self.table()
        if table is None:
            return {}
        table.refresh()
        return files_by_bucket(table.active_files())

    def numbers(self, files: Sequence[StagedFile]) -> dict[str, int]:
        """The numbers of a data commit that deletes: the table of tombstones, which this creates, and the time."""
        if not files:
            return {}
        job, now_ms = self._job.name, int(self._environment.now() * 1000)
        return {tombstones_key(job): fingerprint(self._created().id), deleted_key(job): now_ms}

    def append(self, files: Sequence[StagedFile]) -> None:
        """Commit staged tombstones, except those that are committed already."""
        if not files:
            return
        table = self._created()

        def decide() -> Change | None:
            active = {file.path for file in table.active_files()}
            added = [file for file in files if file.path not in active]
            return _change(table, added, (), "tombstones") if added else None

        table.swap(decide)

    def expire(self) -> None:
        """Merge the tombstones of each bucket, without expired ones."""
        table = self.table()
        for bucket, files in self.files().items():
            assert table is not None
            self._expire_bucket(table, bucket, files)

    def _expire_bucket(self, table: DeltaLog, bucket: int, files: tuple[ActiveFile, ...]) -> None:
        store, version_max = chunk_store(self._job.table, table), table.version + VERSIONS_TO_LAND_MAX
        tombstones = pl.concat([read_tombstones(store, file.path) for file in files])
        oldest = self._environment.now() - self._job.table.tombstone_retention_seconds
        kept = newest(store.layout, tombstones.filter(pl.col(DELETED_AT).dt.epoch("us") >= oldest * 1_000_000))
        if len(files) == 1 and len(kept) == len(tombstones):
            return
        staged = write_tombstones(store, bucket, kept, partial(fresh, compacted_name, version_max))

        def decide() -> Change | None:
            if not {*files} <= {*table.active_files()} or table.version >= version_max:
                return None
            return _change(table, staged, files, "expired")

        table.swap(decide)

    def _created(self) -> DeltaLog:
        table = self.table()
        if table is None:
            columns = tombstone_schema(self._job.table.layout, file_schema(self._data.schema))
            place = self._job.table.tombstones_place
            table = open_or_create(place, self._job.name, columns, "add", self._environment)
            self._table = table
        return table


def tombstones_key(job: str) -> str:
    """The key of the fingerprint of a job's table of tombstones."""
    return f"{job}#tombstones"


def deleted_key(job: str) -> str:
    """The key of the time when a commit of a job last deleted keys, in milliseconds since 1970."""
    return f"{job}#deleted_ms"


def tombstones_faults(spec: KeyedSpec, data: DeltaLog, tombstones: DeltaLog | None) -> Iterator[str]:
    """Why a table of tombstones, opened after the data, cannot have all deletes within the retention."""
    actual = None if tombstones is None else fingerprint(tombstones.id)
    oldest_ms = (data.environment.now() - spec.tombstone_retention_seconds) * 1000
    numbers = data.transactions()
    for key, expected in numbers.items():
        job = key.removesuffix(tombstones_key(""))
        if job != key and expected != actual and numbers.get(deleted_key(job), 0) >= oldest_ms:
            state = "is missing" if tombstones is None else "was created again"
            yield f"job {job} has deleted rows, and the table of tombstones at {spec.tombstones_place.path} {state}"


def _change(table: DeltaLog, added: Sequence[StagedFile], removed: Sequence[ActiveFile], kind: str) -> Change:
    actions: list[Action] = [table.remove_action(file) for file in removed]
    actions += [table.add_action(file) for file in added]
    return Change(actions, files_number(table, added, removed), Provenance(kind=kind, job=table.job).metadata)


def tombstone_schema(layout: Layout, schema: pa.Schema) -> pa.Schema:
    """The columns of the table of tombstones next to a table of this schema."""
    names = zip([*layout.key_names, *order_columns(layout)], [*layout.keys, *layout.order_names], strict=True)
    columns = [pa.field(name, schema.field(column).type) for name, column in names]
    return pa.schema([*columns, pa.field(DELETED_AT, pa.timestamp("us", "UTC")), pa.field(BUCKET, pa.int32())])


def read_tombstones(store: ChunkStore, path: str) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(store.read(path)))


def newest(layout: Layout, tombstones: pl.DataFrame) -> pl.DataFrame:
    """The newest delete of each key, in the order of the keys."""
    ordered = tombstones.sort([*layout.key_names, *order_columns(layout)])
    return ordered.unique(layout.key_names, keep="last", maintain_order=True)


def deleted_now(deletes: pl.DataFrame, layout: Layout, now: float) -> pl.DataFrame:
    """The tombstones of deletes."""
    at = pl.lit(datetime.fromtimestamp(now, UTC), pl.Datetime("us", "UTC")).alias(DELETED_AT)
    return deletes.select(*layout.key_names, *order_columns(layout)).with_columns(at)


def write_tombstones(store: ChunkStore, bucket: int, tombstones: pl.DataFrame, name: NewName) -> tuple[StagedFile, ...]:
    return tuple(store.write(tombstones.to_arrow().cast(store.schema), bucket, name))
