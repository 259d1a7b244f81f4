"""Small healthy tables of every kind that `verify` distinguishes, each made once and copied for every damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from penstock.job.spec import JobSpec, kafka_of
from penstock.lake.delta.compact import compact
from penstock.logs.log import Partition
from penstock.watch.verify import Sample, VerifyReport, verify
from tests.support.memory_log import MemoryLog
from tests.support.quarantine_url import quarantine_of
from tests.support.small_table import Load, SmallTable, small_job, without_offsets

TOPIC = "orders"
OLD, NEW = "old-id", "new-id"
BAD = b"bad"


@dataclass(frozen=True, slots=True)
class Kind:
    """Whether rows keep their places, whether the table is compacted, whether the topic was recreated before that."""

    places: bool
    compacted: bool
    recreated: bool

    def __str__(self) -> str:
        properties = ("places" if self.places else "no places", "compacted" if self.compacted else "as written")
        return ", ".join((*properties, "recreated" if self.recreated else "not recreated"))

    @property
    def mixed(self) -> bool:
        """Rows of two incarnations that cannot be distinguished."""
        return self.compacted and self.recreated


KINDS = [
    Kind(places, compacted, recreated)
    for places in (True, False)
    for compacted in (False, True)
    for recreated in (False, True)
]


@dataclass(frozen=True, slots=True)
class Lake:
    """A job, its table and quarantine in a folder, and the log that it read."""

    kind: Kind
    job: JobSpec
    log: MemoryLog

    @property
    def table(self) -> Path:
        return Path(self.job.table.path)

    @property
    def quarantine(self) -> Path:
        return Path(quarantine_of(self.job))

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return self.log.partitions()

    def copied(self, folder: Path) -> Lake:
        shutil.copytree(self.table.parent, folder, dirs_exist_ok=True)
        return Lake(self.kind, _job(folder, self.kind), self.log)

    def verify(self, values: bool = False, deep: bool = True) -> VerifyReport:
        """All values, so that nothing is left to chance."""
        return verify(self.job, deep=deep, values=Sample(None) if values else None, open_log=lambda _: self.log)

    def files(self) -> list[Path]:
        """The active files of the table, the one with most rows first."""
        return _active(self.table)

    def quarantine_files(self) -> list[Path]:
        return _active(self.quarantine)


Damage = Callable[[Lake], None]


def made(folder: Path, kind: Kind) -> Lake:
    """Partition 0 has two slices and a bad record in each, partition 1 one slice and a lag."""
    job = _job(folder, kind)
    table = SmallTable(job)
    if kind.recreated:
        _fill(table, OLD)
    log = _fill(table, NEW)
    if kind.compacted:
        compact(table.table, 1 << 20)
    return Lake(kind, job, log)


def rewritten(path: Path, change: Callable[[list[dict[str, object]]], list[dict[str, object]]]) -> None:
    """Write a file again in place with other rows."""
    table = pq.ParquetFile(path).read()
    pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), table.schema), path, compression="snappy")


def _job(folder: Path, kind: Kind) -> JobSpec:
    job = small_job("127.0.0.1:1", TOPIC, folder)
    job = replace(job, log=replace(kafka_of(job), group="orders"))
    return job if kind.places else without_offsets(job)


def _fill(table: SmallTable, topic_id: str) -> MemoryLog:
    zero, one = Partition(TOPIC, topic_id, 0), Partition(TOPIC, topic_id, 1)
    table.start(zero)
    table.start(one)
    table.commit(zero, Load(0, 6, [0, 1, 3, 4, 5], bad=[2]))
    table.commit(zero, Load(6, 12, [6, 7, 9, 10, 11], bad=[8]))
    table.commit(one, Load(0, 8, range(8)))
    return MemoryLog(
        {
            zero: {number: BAD if number in (2, 8) else b'{"id": %d}' % number for number in range(12)},
            one: {item: b'{"id": %d}' % item for item in range(10)},
        }
    )


def _active(table: Path) -> list[Path]:
    paths = [table / item for item in pa.table(DeltaTable(str(table)).get_add_actions())["path"].to_pylist()]
    return sorted(paths, key=lambda path: (-pq.read_metadata(path).num_rows, path.name))
