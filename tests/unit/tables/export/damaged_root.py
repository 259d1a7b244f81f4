"""Small exports of both formats, written by the job's own flow from a log in memory, and ways to damage them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction

from penstock.environment import Environment, new_batch_id
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import RoutedSlice
from penstock.flow.write.report import Share, TaskReport, decode_report
from penstock.job.spec import JobSpec
from penstock.lake.compaction import CompactionLimits
from penstock.logs.log import Partition, Slice
from penstock.tables.export.export import Export
from penstock.tables.export.flow import fanout_flow
from penstock.tables.export.upkeep import compact
from penstock.watch.verify import Check, Sample, VerifyReport, verify
from tests.support.export_root import MONDAY, ONE, WEDNESDAY, ZERO, ExportRoot, job_file
from tests.support.memory_log import MemoryLog
from tests.support.pipes import crash_at
from tests.support.quarantine_url import export_quarantine

Row = dict[str, Any]
Rows = list[Row]
BAD = b"bad"
TRIMMED = 12
"""Where the log begins after retention deleted records."""
COMPACT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Kind:
    format: str
    compacted: bool = False
    places: bool = True

    def __str__(self) -> str:
        return f"{self.format}, {'compacted' if self.compacted else 'as written'}"

    @property
    def is_plain(self) -> bool:
        return self.format == "parquet"


PLAIN, DELTA = Kind("parquet"), Kind("delta")
KINDS = [PLAIN, replace(PLAIN, compacted=True), DELTA, replace(DELTA, compacted=True)]


def event(name: str, day: str = MONDAY, number: int | str = 0) -> bytes:
    return json.dumps({"type": name, "at": f"{day}T12:00:00Z", "id": number}).encode()


def make_job(folder: Path, kind: Kind, name: str = "shop", topic: str = "shop", unknown: str = "drop") -> Path:
    path = job_file(folder, name=name, topic=topic, export=f"format: {kind.format}")
    text = path.read_text().replace("field(type)}", f"field(type), unknown: {unknown}}}")
    more = "on: {bad_record: quarantine, bad_share: 1}\n" + ("" if kind.places else "place: none\n")
    path.write_text(text + more)
    return path


@dataclass(slots=True)
class Lake:
    """An export in a folder, and its log."""

    kind: Kind
    root: ExportRoot
    log: MemoryLog

    @property
    def job(self) -> JobSpec:
        return self.root.job

    @property
    def path(self) -> Path:
        return self.root.lake

    @property
    def quarantine(self) -> Path:
        return Path(export_quarantine(self.job))

    def copied(self, folder: Path, trimmed: bool = False) -> Lake:
        shutil.copytree(self.path, folder / "lake")
        firsts = dict.fromkeys((ZERO, ONE), TRIMMED) if trimmed else {}
        log = replace(self.log, values=dict(self.log.values), ends=dict(self.log.ends), firsts=firsts)
        return Lake(self.kind, ExportRoot(make_job(folder, self.kind)), log)

    def reopened(self, path: Path) -> Lake:
        """The same under another job file."""
        return Lake(self.kind, ExportRoot(path), self.log)

    # what a job does

    def write(self, partition: Partition, *records: bytes, **run: Any) -> None:
        """Append records to the log and commit them all; further arguments are those of `run`."""
        self.log.append(partition, *records)
        self.run(partition, **run)

    def run(
        self,
        partition: Partition,
        end: int | None = None,
        lagging: Collection[str] = (),
        table: Export | None = None,
    ) -> None:
        """Commit the next slice, up to the log's end; records of lagging types are deferred."""
        counted = (table or self.root.table).logs.state().of(partition)
        start, end = counted.position or 0, self.log.bounds([partition])[partition].end if end is None else end
        behind = {*counted.lags, *lagging}
        takes = {name: start for name in self.root.job.table.types if name not in behind}
        self._land(Slice(partition, start, end, start), takes, True, table)

    def catch_up(self, partition: Partition, name: str, end: int | None = None, table: Export | None = None) -> None:
        """Commit what a lagging type lacks."""
        counted = (table or self.root.table).logs.state().of(partition)
        lag = counted.lags[name]
        end = counted.position or 0 if end is None else end
        read_from = max(lag.position, self.log.bounds([partition])[partition].first)
        self._land(Slice(partition, lag.position, end, read_from), {name: lag.position}, False, table)

    def _land(self, piece: Slice, takes: Mapping[str, int], main: bool, table: Export | None) -> None:
        partition = piece.partition
        logs = self.root.logs if table is None else table.logs
        taken_from = {name: logs.taken_from(name, partition, start) for name, start in takes.items()}
        routed = RoutedSlice(partition.topic_id, piece.start, piece.end, 1, taken_from, takes, main)
        flow = fanout_flow(logs, new_batch_id(), {partition: routed}, str(self.quarantine))
        shares: dict[str, Share] = {}
        for report in fanout_stage(flow)(self.log.records(partition, piece.read_from, piece.end)):
            for of_partition in decode_report(report.column(0)[0].as_py(), TaskReport).shares.values():
                shares |= {name: shares.get(name, Share()) + share for name, share in of_partition.items()}
        outcome = self.root.land(piece, shares, takes, main=main, table=table)
        assert not outcome.refused, outcome.refused

    def crashing(self, step: str) -> Export:
        """A process that dies at a step."""
        return self.root.open(Environment(sleep=lambda _: None, at_step=crash_at(step)))

    def compact(self, table: Export | None = None) -> None:
        report = compact(
            table or self.root.open(), COMPACT_BYTES, all_days=True, progress=None, effort=CompactionLimits()
        )
        assert report.files_removed and not report.failed

    def verify(self, values: bool = False, deep: bool = True) -> VerifyReport:
        """With all values, so that nothing is left to chance."""
        return verify(self.job, deep=deep, values=Sample(None) if values else None, open_log=lambda _: self.log)

    def prove(self) -> dict[str, Check]:
        """Everything there is must be proven; returns the checks by name."""
        for report in (self.verify(deep=False), self.verify(values=True)):
            failed = [(check.name, check.detail, check.unproven) for check in report.checks if not check.ok]
            assert failed == []
        return {check.name: check for check in report.checks}

    # what is there

    def log_of(self, name: str = "") -> Path:
        """The Delta log of a type, or of the job."""
        home = self.path / "_penstock" / self.job.name
        if not name:
            return home
        return home / "types" / name if self.kind.is_plain else self.path / name

    def files(self, name: str = "order") -> list[Path]:
        """The active files of a type, the one with most rows first."""
        base = self.path if self.kind.is_plain else self.path / name
        return _active(self.log_of(name), base)

    def quarantine_files(self) -> list[Path]:
        return _active(self.quarantine, self.quarantine)


def _active(log: Path, base: Path) -> list[Path]:
    paths = [base / path for path in pa.table(DeltaTable(str(log)).get_add_actions())["path"].to_pylist()]
    return sorted(paths, key=lambda path: (-pq.read_metadata(path).num_rows, path.name))


def started(path: Path, kind: Kind, *partitions: Partition) -> Lake:
    lake = Lake(kind, ExportRoot(path), MemoryLog())
    for partition in partitions or (ZERO, ONE):
        lake.root.start(partition)
        lake.log.append(partition)
    return lake


def made(folder: Path, kind: Kind) -> Lake:
    """Monday is complete, Wednesday is not. Partition 0 has bad and dropped records, partition 1 neither, and a lag.

    It is made once for each kind, and copied for every test.
    """
    lake, _ = _made(kind)
    return lake.copied(folder)


@cache
def _made(kind: Kind) -> tuple[Lake, TemporaryDirectory[str]]:
    """With its folder, which is there as long as this process."""
    folder = TemporaryDirectory(prefix="penstock-tests-")
    return _written(Path(folder.name), kind), folder


def _written(folder: Path, kind: Kind) -> Lake:
    lake = started(make_job(folder, kind), kind)
    orders, clicks = ([event(name, MONDAY, number) for number in range(6)] for name in ("order", "click"))
    # Offsets 10 and 11 are quarantined, one of no type and one of orders; 12 is of a type that is dropped.
    lake.write(ZERO, *orders, *clicks[:4], BAD, event("order", MONDAY, "x"), event("other"))
    lake.write(ZERO, *clicks, *orders)
    lake.write(ONE, *orders, *clicks)
    lake.write(ZERO, event("order", WEDNESDAY, 1), event("click", WEDNESDAY, 2))
    lake.write(ONE, event("order", WEDNESDAY, 1), event("order", WEDNESDAY, 2), event("click", WEDNESDAY, 3))
    lake.log.append(ONE, event("order", WEDNESDAY, 4))
    if kind.compacted:
        lake.compact()
    return lake


# damages


def rewritten(path: Path, change: Callable[[Rows], Rows]) -> None:
    """Write a file again in place with other rows, under the same footer."""
    table = pq.ParquetFile(path).read()
    facts = {key: value for key, value in (pq.read_metadata(path).metadata or {}).items() if key == b"penstock"}
    schema = table.schema.with_metadata(facts)
    pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), schema), path, compression="snappy")


def set_numbers(log: Path, **changes: Callable[[int], int]) -> None:
    """A foreign commit moves app transactions."""
    table = DeltaTable(str(log))
    moved = [Transaction(key, change(table.transaction_version(key) or 0), None) for key, change in changes.items()]
    table.create_write_transaction(
        [], "append", table.schema(), commit_properties=CommitProperties(app_transactions=moved)
    )


def add_file(log: Path, base: Path, file: Path, like: Path) -> None:
    """A foreign commit adds a file with the partition values of another one."""
    table = DeltaTable(str(log))
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    [entry] = [action for action in actions if action["path"] == str(like.relative_to(base))]
    values = {column: str(entry[f"partition.{column}"]) for column in table.metadata().partition_columns}
    rows = pq.read_metadata(file).num_rows
    stats = json.dumps({"numRecords": rows})
    action = AddAction(str(file.relative_to(base)), file.stat().st_size, values, 0, True, stats)
    table.create_write_transaction([action], "append", table.schema(), partition_by=list(values))
