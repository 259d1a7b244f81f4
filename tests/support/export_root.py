"""An export's root on a local folder: real Parquet files with real footers under real logs, without Spark."""

from __future__ import annotations

import io
import json
import shutil
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.environment import Environment, new_batch_id
from penstock.flow.route.fanout_flow import RoutedSlice
from penstock.flow.route.footers import Footer, WrittenFile, read_footer
from penstock.flow.write.manifest import Counts, StagedFile, ranges_of
from penstock.flow.write.names import replayed_name, staged_name
from penstock.flow.write.report import UNROUTED, Share
from penstock.job.spec import JobSpec, job_of
from penstock.lake.proposal import Outcome, Proposal, StartPart
from penstock.logs.log import Batch, Partition, Slice
from penstock.quarantine.table import Quarantine
from penstock.staging.reports import Gathered
from penstock.storage import Storage, open_storage
from penstock.tables.export.catch_up import CatchUpBatch
from penstock.tables.export.export import Export, WrittenShares
from penstock.tables.export.finishing import claim_names
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.names import day_folder
from penstock.tables.export.spec import ExportSpec
from penstock.tables.registry import load_job
from tests.support.exports import ExportView
from tests.support.memory_storage import MemoryStorage

JOB = """\
job: {name}
log:
  kafka: {{bootstrap: "localhost:1", topics: [{topic}]{kafka}}}
decode: json
route: {{by: field(type)}}
event_time: at
types:
  order: {{schema: {{type: string, at: string, id: long}}{order}}}
  click: {{schema: {{type: string, at: string, id: long}}{click}}}
table:
  export: {{path: {path}{export}}}
"""

ZERO = Partition("shop", "topicA", 0)
ONE = Partition("shop", "topicA", 1)
MONDAY, TUESDAY, WEDNESDAY = "2026-03-02", "2026-03-03", "2026-03-04"
TOKEN = 1

COLUMNS = pa.schema(
    [
        ("type", pa.string()),
        ("at", pa.string()),
        ("id", pa.int64()),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("kafka_topic", pa.string()),
    ]
)

Rows = Mapping[tuple[str, str], Sequence[int]]
"""The offsets of the rows, by type and day."""
Place = tuple[str, int, int]
"""(type, partition, offset) of a row."""


def noon_ms(day: str) -> int:
    return int(datetime.fromisoformat(f"{day}T12:00:00").replace(tzinfo=UTC).timestamp() * 1000)


def job_file(
    folder: Path,
    name: str = "shop",
    topic: str = "shop",
    kafka: str = "",
    order: str = "",
    click: str = "",
    export: str = "",
) -> Path:
    """Write a job file; the texts are appended to the sections that they are named after."""
    path = folder / f"{name}.yaml"
    lake = json.dumps(str(folder / "lake"))
    stated = {"kafka": kafka, "order": order, "click": click, "export": export}
    more = {section: f", {text}" if text else "" for section, text in stated.items()}
    path.write_text(JOB.format(name=name, topic=topic, path=lake, **more))
    return path


def footer_of(path: Path) -> Footer:
    """The footer of a data file."""
    return read_footer(open_storage(str(path.parent), {}), path.name)[0]


def rows_in(lake: Path) -> Counter[Place]:
    """How often a plain reader finds each row; a file that is deleted between listing and reading is skipped."""
    counter: Counter[Place] = Counter()
    for path in sorted(lake.glob("[!_]*/day=*/*.parquet")):
        with suppress(FileNotFoundError):
            table = pq.ParquetFile(path).read(columns=["kafka_partition", "kafka_offset"])
            columns = (column.to_pylist() for column in table.columns)
            counter.update((path.parent.parent.name, *place) for place in zip(*columns, strict=True))
    return counter


def rows_stored(storage: Storage) -> Counter[Place]:
    """The same for any storage."""
    counter: Counter[Place] = Counter()
    for entry in storage.list():
        if entry.path.startswith("_") or not entry.path.endswith(".parquet"):
            continue
        with storage.open_reader(entry.path) as source:
            rows = pq.ParquetFile(source).read().to_pylist()
        name = entry.path.split("/")[0]
        counter.update((name, row["kafka_partition"], row["kafka_offset"]) for row in rows)
    return counter


class CopyingStorage(MemoryStorage):
    """As an object store has it: a rename is a copy, and its source stays."""

    def __init__(self) -> None:
        super().__init__()
        self.url = "s3://lake"

    @property
    def keeps_source(self) -> bool:
        return True


@dataclass(slots=True)
class ExportRoot:
    """Fills the root of a job slice by slice, as the engine would."""

    job_path: Path
    environment: Environment = field(default_factory=lambda: Environment(sleep=lambda _: None))
    storage: Storage | None = None
    columns: pa.Schema = COLUMNS
    """Of the files that are written next."""
    expected: Counter[Place] = field(default_factory=Counter)
    """All rows that were committed."""
    job: JobSpec[ExportSpec] = field(init=False)
    table: Export = field(init=False)

    def __post_init__(self) -> None:
        self.job = job_of(load_job(self.job_path), ExportSpec)
        self.table = self.open()
        claim_names(self.logs, [Partition(topic, f"{self.job.name}-{topic}", 0) for topic in self.job.log.topics])

    @property
    def lake(self) -> Path:
        return Path(self.job.table.path)

    @property
    def logs(self) -> ExportLogs:
        return self.table.logs

    @property
    def state(self) -> ExportView:
        return ExportView.of_logs(ExportLogs(self.job, self.environment))

    def open(self, environment: Environment | None = None) -> Export:
        """Another process's view of the same root."""
        environment = environment or self.environment
        logs = ExportLogs(self.job, environment, self.storage)
        logs.agree_on_types()
        return Export(logs, Quarantine(self.job, logs.job_log, environment))

    def files(self) -> list[str]:
        """What readers see, sorted."""
        return sorted(str(item.relative_to(self.lake)) for item in self.lake.glob("[!_]*/day=*/*.parquet"))

    def staged(self) -> list[str]:
        folder = self.lake / "_penstock" / self.job.name / "staged"
        return sorted(str(item.relative_to(self.lake)) for item in folder.rglob("*") if item.is_file())

    def start(self, *partitions: Partition, offset: int = 0, token: int = TOKEN) -> None:
        parts = tuple(StartPart(partition, offset, token) for partition in partitions)
        assert not self.table.commit(Proposal(self.job.name, new_batch_id(), parts)).refused

    def write(
        self,
        partition: Partition,
        start: int,
        end: int,
        rows: Rows,
        *,
        pieces: Sequence[int] = (),
        watermark: str | None = None,
        deferred: Mapping[str, Sequence[int]] | None = None,
        failed: Collection[str] = (),
    ) -> None:
        """Commit the slice `[start, end)`; `pieces` are where tasks begin, `deferred` the records of lagging types.

        The files of `failed` types are written, and turn out not to fit into their place before the commit.
        """
        lagging = deferred or {}
        takes = {name: start for name in self.job.table.types if name not in lagging}
        lacking, shares = self._there(partition, takes, rows)
        for name, share in self.stage(partition, (start, end), lacking, pieces=pieces or (start,)).items():
            shares[name] = shares[name] + share if name in shares else share
        for name, offsets in lagging.items():
            shares[name] = Share(Counts(read=len(offsets)), min(offsets))
        for name in failed:
            counts = Counts(read=shares[name].counts.read)
            shares[name] = replace(shares[name], counts=counts, files=(), failed="made to fail")
        outcome = self.land(Slice(partition, start, end, start), shares, takes, watermark=watermark)
        assert not outcome.refused, outcome.refused
        self._expect(partition, {key: offsets for key, offsets in rows.items() if key[0] not in failed})

    def _there(self, partition: Partition, takes: Mapping[str, int], rows: Rows) -> tuple[Rows, dict[str, Share]]:
        """The rows that types lack, and shares of those that they have because a process died after their commit."""
        starts = {name: self.logs.taken_from(name, partition, start) for name, start in takes.items()}
        lacking = {key: [item for item in of if item >= starts.get(key[0], 0)] for key, of in rows.items()}
        shares: dict[str, Share] = {}
        for (name, _), offsets in rows.items():
            there = [offset for offset in offsets if offset < starts.get(name, 0)]
            if there:
                counts = Counts(read=len(there), skipped=len(there))
                share = Share(counts, min(there))
                shares[name] = shares[name] + share if name in shares else share
        return lacking, shares

    def catch_up(self, partition: Partition, takes: Mapping[str, int], end: int, rows: Rows) -> None:
        """Commit a slice of types that lagged."""
        start = min(takes.values())
        lacking, shares = self._there(partition, takes, rows)
        for name, share in self.stage(partition, (start, end), lacking, pieces=(start,), takes=takes).items():
            shares[name] = shares[name] + share if name in shares else share
        outcome = self.land(Slice(partition, start, end, start), shares, takes, main=False)
        assert not outcome.refused, outcome.refused
        self._expect(partition, rows)

    def land(
        self,
        piece: Slice,
        shares: Mapping[str, Share],
        takes: Mapping[str, int],
        *,
        main: bool = True,
        watermark: str | None = None,
        token: int = TOKEN,
        table: Export | None = None,
    ) -> Outcome:
        """Commit shares that were staged; `watermark` is the day of the latest event."""
        table = table or self.table
        if watermark is not None:
            shares = {**shares, UNROUTED: Share(event_ms_max=noon_ms(watermark))}
        key = (piece.partition.topic, piece.partition.number)
        taken_from = {name: table.logs.taken_from(name, piece.partition, start) for name, start in takes.items()}
        routed = RoutedSlice(piece.partition.topic_id, piece.start, piece.end, 1, taken_from, takes, main)
        gathered = Gathered({key: dict(shares)}, "", (), {})
        batch = Batch(new_batch_id(), (piece,)) if main else CatchUpBatch(new_batch_id(), (piece,))
        return table.land(
            batch, {piece.partition: token}, WrittenShares(gathered, {piece.partition: routed}, 0.0)
        ).outcome

    def stage(
        self,
        partition: Partition,
        place: tuple[int, int],
        rows: Rows,
        *,
        pieces: Sequence[int],
        takes: Mapping[str, int] | None = None,
    ) -> dict[str, Share]:
        """Write the files of a slice, one for each piece, type and day, with the footers that tasks write."""
        batch = new_batch_id()
        shares: dict[str, Share] = {}
        for task, piece in enumerate(zip(pieces, [*pieces[1:], place[1]], strict=True)):
            of_piece = {key: [item for item in of if piece[0] <= item < piece[1]] for key, of in rows.items()}
            files = {key: of for key, of in of_piece.items() if of}
            for (name, day), offsets in files.items():
                written = WrittenFile(
                    topic=partition.topic,
                    topic_id=partition.topic_id,
                    number=partition.number,
                    batch=batch,
                    type=name,
                    day=day,
                    start=(takes or {}).get(name, place[0]),
                    end=place[1],
                    last=max(offsets),
                    after=self.logs.files_ends([name], partition).get(name, 0),
                    task=str(task),
                    tasks=len(pieces),
                    types=Counter(key[0] for key in files),
                )
                staged = staged_name(partition.topic_id, partition.number, *place, uuid.uuid4().hex)
                file = self._file(partition, staged, offsets, written)
                share = Share(Counts(len(offsets), len(offsets)), min(offsets), None, {day: len(offsets)}, (file,))
                shares[name] = shares[name] + share if name in shares else share
        return shares

    def stage_replay(self, partition: Partition, run: int, rows: Rows) -> dict[str, Share]:
        """Write the files of a replay run with the footers that its tasks write."""
        shares: dict[str, Share] = {}
        for (name, day), offsets in rows.items():
            staged = replayed_name(str(run), uuid.uuid4().hex)
            written = WrittenFile(
                topic=partition.topic,
                topic_id=partition.topic_id,
                number=partition.number,
                batch=new_batch_id(),
                type=name,
                day=day,
                start=min(offsets),
                end=max(offsets) + 1,
                last=max(offsets),
                after=self.logs.files_ends([name], partition).get(name, 0),
                run=run,
            )
            file = self._file(partition, staged, offsets, written)
            counts, days = Counts(len(offsets), len(offsets)), {day: len(offsets)}
            share = Share(counts, min(offsets), None, days, (file,), replayed=ranges_of(offsets))
            shares[name] = shares[name] + share if name in shares else share
        return shares

    def _file(self, partition: Partition, staged: str, offsets: Sequence[int], written: WrittenFile) -> StagedFile:
        name, day = written.type, written.day
        plain = f"{self.logs.staged}/{name}/{staged}"
        path = plain if self.logs.is_plain else f"{day_folder(name, day)}/{staged}"
        listed = [
            {
                "type": name,
                "at": day,
                "id": offset,
                "kafka_partition": partition.number,
                "kafka_offset": offset,
                "kafka_topic": partition.topic,
            }
            for offset in offsets
        ]
        table = pa.Table.from_pylist(listed, self.columns)
        sink = io.BytesIO()
        with pq.ParquetWriter(sink, self.columns, store_schema=False) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(Footer(job=self.job.name, written=(written,)).as_metadata)
        data = sink.getvalue()
        self.logs.storage.put(path, data)
        stats = json.dumps({"numRecords": len(offsets)})
        return StagedFile(
            partition.topic, partition.number, path, len(offsets), len(data), {"day": day}, stats, max(offsets)
        )

    def _expect(self, partition: Partition, rows: Rows) -> None:
        for (name, _), offsets in rows.items():
            self.expected.update((name, partition.number, offset) for offset in offsets)


def filled(folder: Path, storage: Storage | None = None, **texts: str) -> ExportRoot:
    """Two partitions with three batches each of Monday, then Wednesday: Monday is complete, with 6 files a type.

    A root on a disk is made once for each job file, and copied for every test.
    """
    if storage is not None or (folder / "lake").exists():
        return _filled(folder, storage, **texts)
    made, _ = _made(**texts)
    shutil.copytree(made.lake, folder / "lake")
    return ExportRoot(job_file(folder, **texts), expected=made.expected.copy())


@cache
def _made(**texts: str) -> tuple[ExportRoot, TemporaryDirectory[str]]:
    """With its folder, which is there as long as this process."""
    folder = TemporaryDirectory(prefix="penstock-tests-")
    return _filled(Path(folder.name), None, **texts), folder


def _filled(folder: Path, storage: Storage | None, **texts: str) -> ExportRoot:
    root = ExportRoot(job_file(folder, **texts), storage=storage)
    root.start(ZERO, ONE)
    for partition in (ZERO, ONE):
        for start in (0, 10, 20):
            orders, clicks = range(start, start + 6), range(start + 6, start + 10)
            root.write(partition, start, start + 10, {("order", MONDAY): orders, ("click", MONDAY): clicks})
        root.write(partition, 30, 34, {("order", WEDNESDAY): range(30, 34)}, watermark=WEDNESDAY)
    return root
