"""An export without Kafka and without Spark: the real rounds over a log in memory, and readers that know only the log.

Several processes of one job are several `Process` objects on the same root. A schedule of them is made by hand (stage
now, commit later) or by acting at a failpoint of one of them.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
from deltalake import DeltaTable

from penstock.engine.round import RECORD_BYTES_ASSUMED, Rounds, Waiting, open_rounds
from penstock.environment import Environment
from penstock.failpoints import AtStep, Failpoint, noop
from penstock.job.spec import JobSpec, job_of
from penstock.lake.proposal import Outcome
from penstock.lake.state import Totals
from penstock.logs.log import Batch, Partition
from penstock.plan import Wait
from penstock.storage import NotFoundError, Storage, open_storage
from penstock.tables.export.export import Export, ExportTable, TypeLaggingError, WrittenShares
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.state import ExportState
from penstock.tables.kind import SchemaChanged, View
from penstock.tables.registry import load_job
from tests.scenarios.local_spark import local_session
from tests.support.export_story import Holding, Staging, a_month_later
from tests.support.exports import event, export_job, type_of
from tests.support.memory_log import MemoryLog
from tests.support.pipes import Clock, Recorder
from tests.support.quarantine_url import export_quarantine

TOPIC = "events"
TYPES = ("A", "B", "C")
ZERO, ONE = (Partition(TOPIC, "topic-id-1", number) for number in range(2))
ROUNDS_MAX = 60
ROUND_SECONDS = 60.0
"""How far the clock moves with every round: longer than the pause of a failed type."""
QUARANTINE = "quarantine"

Place = tuple[str, int, int]
"""(type or `QUARANTINE`, partition, offset) of a record."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the job, which holds all partitions under one token until another takes them over."""

    rounds: Rounds[WrittenShares]
    claims: Holding
    recorder: Recorder
    clock: Clock

    @property
    def table(self) -> Export:
        table = self.rounds.table
        assert isinstance(table, Export)
        return table

    @property
    def logs(self) -> ExportLogs:
        return self.table.logs

    def round(self) -> bool:
        """One round; whether nothing is left to do, or only what cannot be done now."""
        self.clock.seconds += ROUND_SECONDS
        try:
            result = self.rounds.round(flush_now=True)
        except TypeLaggingError:
            return True
        return isinstance(result, Waiting) and result.done

    def run(self) -> None:
        """Rounds until nothing is left to do."""
        for _ in range(ROUNDS_MAX):
            if self.round():
                return
        raise AssertionError("there was always something due")

    def stage(self, end: int | Mapping[Partition, int]) -> Staging:
        """The first half of a round, up to the commit: claim, fence, finish, plan up to an offset, write."""
        partitions = self.rounds.log.partitions()
        tokens = self._owned(partitions)
        bounds = self.rounds.log.bounds(tokens)
        state = self.table.state(tokens)
        ends = dict.fromkeys(tokens, end) if isinstance(end, int) else end
        return self._written(self.rounds.plan(tokens, state, bounds, True, ends), tokens)

    def stage_catch_up(self) -> Staging:
        """The same for types that lag."""
        tokens = self._owned(self.rounds.log.partitions())
        bounds = self.rounds.log.bounds(tokens)
        self.clock.seconds += ROUND_SECONDS
        view = View(tokens, bounds, self.clock.seconds, RECORD_BYTES_ASSUMED, flush_now=True)
        [batch] = [chore.batch for chore in self.table.chores(view) if chore.batch is not None]
        return self._written(batch, tokens)

    def _owned(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        tokens = self.rounds.claim(tuple(partitions))
        tokens, _ = self.rounds.starter.begin(tokens, partitions, self.rounds.log.bounds(tokens))
        self.table.own(tokens)
        self.table.finish_pending(tokens)
        return dict(tokens)

    def _written(self, planned: Batch | Wait, tokens: Mapping[Partition, int]) -> Staging:
        assert isinstance(planned, Batch)
        written = self.rounds.writer.stage(planned)
        assert not isinstance(written, SchemaChanged)
        return Staging(self.rounds, planned, tokens, written)


@dataclass(slots=True)
class ExportWorld:
    """A log in memory, one export of it, and how a reader finds its rows."""

    folder: Path
    format: str = "parquet"
    root: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(TYPES, ""))
    """With the rotation of each."""
    partitions: tuple[Partition, ...] = (ZERO, ONE)
    name: str = "export"
    cluster: str = ""
    topics: tuple[str, ...] = (TOPIC,)
    clock: Clock = field(default_factory=a_month_later)
    log: MemoryLog = field(init=False)

    def __post_init__(self) -> None:
        self.root = self.root or str(self.folder / "root")
        self.log = MemoryLog({partition: {} for partition in self.partitions})

    # the log

    def send(self, kinds: str, partition: Partition = ZERO, day: int = 0) -> None:
        """One record for each letter, which is its type; of small letters the record does not fit its type."""
        start = self.end(partition)
        values = [_record(kind, start + index, day) for index, kind in enumerate(kinds)]
        self.log.append(partition, *values)

    def end(self, partition: Partition = ZERO) -> int:
        return self.log.bounds([partition])[partition].end

    def sent(self) -> Counter[Place]:
        """Where each record of the log belongs, by its text alone."""
        places: Counter[Place] = Counter()
        for partition, records in self.log.values.items():
            for offset, value in records.items():
                assert isinstance(value, bytes)
                record = json.loads(value)
                fits = record["type"] in self.types and isinstance(record["id"], int)
                places[record["type"] if fits else QUARANTINE, partition.number, offset] += 1
        return places

    # the job

    @property
    def job(self) -> JobSpec:
        path = self.folder / "job.yaml"
        storage = ", ".join(f'{name}: "{value}"' for name, value in self.options.items())
        export = f"format: {self.format}" + (f", storage: {{{storage}}}" if storage else "")
        export += f", cluster: {self.cluster}" if self.cluster else ""
        types = [type_of(name, **({"rotation": text} if text else {})) for name, text in self.types.items()]
        text = export_job("nowhere:9092", Path("ROOT"), *self.topics, types=types, export=export, **self.sections)
        text = text.replace("job: export", f"job: {self.name}").replace('path: "ROOT"', f'path: "{self.root}"')
        # Atomically: other processes of the test read and write the same file.
        new = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        new.write_text(text)
        new.replace(path)
        return load_job(path)

    def open(self, token: int = 1, at_step: AtStep = noop, in_tasks: Failpoint | None = None) -> Process:
        """A process under this token; `in_tasks` is a failpoint that tasks reach too."""
        recorder, claims = Recorder(), Holding(token)
        environment = Environment(
            now=self.clock.now, sleep=lambda _: None, at_step=at_step, listener=recorder, failpoint=in_tasks
        )
        rounds = open_rounds(self.job, local_session(), environment, claims, lambda job: self.log.view(job.log))
        return Process(rounds, claims, recorder, self.clock)

    def run(self, token: int = 1, at_step: AtStep = noop, in_tasks: Failpoint | None = None) -> Process:
        process = self.open(token, at_step, in_tasks)
        process.run()
        return process

    @property
    def table(self) -> ExportTable:
        return ExportTable(self.logs)

    @property
    def logs(self) -> ExportLogs:
        return ExportLogs(job_of(self.job, ExportSpec), Environment(now=self.clock.now))

    @property
    def state(self) -> ExportState:
        return self.logs.state()

    @property
    def storage(self) -> Storage:
        return open_storage(self.root, self.options)

    def type_version(self, name: str) -> int:
        log = self.logs.find_type_log(name)
        assert log is not None
        return log.version

    def type_position(self, name: str, partition: Partition = ZERO) -> int | None:
        return self.logs.counted(name, partition).position

    # what a reader finds

    def rows(self) -> Counter[Place]:
        """How often a plain reader, or a reader of Delta tables, finds each record."""
        return Counter(place for name in self.types for place in self._rows_of(name))

    def _rows_of(self, name: str) -> Iterator[Place]:
        if self.format == "delta":
            if any(entry.path.endswith(".json") for entry in self.storage.list(f"{name}/_delta_log")):
                frame = self._delta_frame(f"{self.root}/{name}")
                for number, offset in frame.select("kafka_partition", "kafka_offset").rows():
                    yield name, number, offset
            return
        for entry in list(self.storage.list(name)):
            if entry.path.endswith(".parquet"):
                try:
                    with self.storage.open_reader(entry.path) as source:
                        columns = pq.ParquetFile(source).read(columns=["kafka_partition", "kafka_offset"]).to_pydict()
                except NotFoundError:
                    continue
                for number, offset in zip(columns["kafka_partition"], columns["kafka_offset"], strict=True):
                    yield name, number, offset

    def _delta_frame(self, url: str) -> pl.DataFrame:
        """Read by deltalake, which supports every store; Polars does not support HDFS."""
        frame = pl.from_arrow(DeltaTable(url, storage_options=dict(self.options)).to_pyarrow_table())
        assert isinstance(frame, pl.DataFrame)
        return frame

    def quarantined(self) -> Counter[Place]:
        url = export_quarantine(self.job)
        if not any(open_storage(url, self.options).list("_delta_log")):
            return Counter()
        frame = self._delta_frame(url).select("partition", "offset")
        return Counter((QUARANTINE, number, offset) for number, offset in frame.rows())

    def all_places(self) -> Counter[Place]:
        return self.rows() + self.quarantined()

    def totals(self, partition: Partition = ZERO) -> Totals:
        """What the job log counts of a partition."""
        return self.state.of(partition).totals

    def check(self) -> None:
        """Every record of the log is in its place once, and every count adds up."""
        sent, actual = self.sent(), self.all_places()
        assert actual == sent, f"missing {sorted(sent - actual)}, too many {sorted(actual - sent)}"
        state = self.state
        for partition in self.partitions:
            assert state.of(partition).position_of() == self.end(partition)
        self.check_totals(actual)

    def check_nothing_twice(self) -> None:
        rows = self.rows()
        assert set(rows.values()) <= {1}, f"twice: {[place for place, count in rows.items() if count > 1]}"
        assert not rows - self.sent(), "rows in a wrong place"

    def check_totals(self, actual: Counter[Place]) -> None:
        """The job log and the logs of the types count the same records, and these are the ones that were found."""
        logs = self.logs
        state = logs.state()
        for partition in self.partitions:
            counted = state.of(partition)
            job = counted.totals
            types = [log.cached_state([partition]).of(partition).totals for log in logs.type_logs().values()]
            surplus = self.surplus(partition, logs)
            assert surplus == 0 or 0 < surplus <= job.gap, (job, types)
            assert job.deferred == sum(lag.deferred for lag in counted.lags.values()), counted
            assert job.offsets == (counted.position or 0) - (counted.origin or 0), counted
            rows = sum(of_type.written + of_type.replayed for of_type in types)
            bad = job.quarantined + sum(of_type.quarantined - of_type.replayed for of_type in types)
            at = Counter(place[0] == QUARANTINE for place in actual.elements() if place[1] == partition.number)
            assert (at[False], at[True]) == (rows, bad), (job, types)

    def surplus(self, partition: Partition, logs: ExportLogs | None = None) -> int:
        """Records that types count and the job does not, which should be none.

        Only a gap makes some: types had landed records beyond the job's position when a process died, and the log lost
        them before the next process could count them. Their offsets are in the job's `gap`.
        """
        logs = logs or self.logs
        job = logs.state().of(partition).totals
        landed = sum(log.cached_state([partition]).of(partition).totals.read for log in logs.type_logs().values())
        unrouted = job.quarantined + job.filtered + job.skipped
        return landed + unrouted + job.deferred + job.vanished - job.read

    # faults, on a local disk

    @contextmanager
    def broken(self, path: str) -> Iterator[None]:
        """A folder below the root that is a plain file meanwhile: nothing can be put there, or read."""
        self.break_folder(path)
        yield
        self.heal_folder(path)

    def break_folder(self, path: str) -> None:
        folder = Path(self.root) / path
        folder.mkdir(parents=True, exist_ok=True)
        folder.rename(self.folder / folder.name)
        folder.write_text("in the way")

    def heal_folder(self, path: str) -> None:
        folder = Path(self.root) / path
        folder.unlink()
        (self.folder / folder.name).rename(folder)


def refused(outcome: Outcome) -> list[Partition]:
    return [refusal.partition for refusal in outcome.refused]


def places(kinds: Iterable[str], start: int = 0, partition: Partition = ZERO) -> Counter[Place]:
    """Where records of these types belong that begin at an offset."""
    return Counter((kind, partition.number, start + index) for index, kind in enumerate(kinds))


def _record(kind: str, offset: int, day: int) -> bytes:
    return event(kind.upper(), offset, day, **({} if kind.isupper() else {"id": "bad"})).encode()
