"""A random walk of a keyed table: records, processes, loads, compactions and trims, many of which die at a step."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import polars as pl

from penstock.engine.round import open_rounds
from penstock.environment import Environment
from penstock.failpoints import COMPACT_STEPS, VACUUM_STEPS
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition
from penstock.logs.registry import OpenLog
from penstock.proof.subject import Sample
from penstock.tables.keyed.kind import KeyedKind
from penstock.tables.keyed.proof import OPEN
from penstock.tables.kind import CompactRequest, Loading, SaveMode, VacuumRequest
from penstock.tables.registry import kind_of, load_job
from penstock.watch.verify import Verdict, verify
from tests.scenarios.local_spark import local_session
from tests.support.keyed_tables import ONE, ZERO, Holding, finish
from tests.support.memory_log import MemoryLog, MemoryRecord
from tests.support.pipes import CrashError, crash_at

JOB = """\
job: walk
log: {log}
decode: json
schema: {{device: string, number: long, value: long, gone: boolean, seq: long}}
table:
  keyed:
    path: "{path}"
    partition_keys: [device]
    row_keys: [number]
    sequence: seq
    delete: gone
    buckets: 3
    chunk_rows: 6
    deletion_vectors: {vectors}
flush: {{max_messages_per_batch: 7}}
"""
KAFKA = '{kafka: {bootstrap: "nowhere:9092", topics: [events]}}'
Key = tuple[str, int]
NOWHERE = "nowhere"
RUN_STEPS = ("planned", "staged", "checked", "committed", "quarantined", "mirrored", *KeyedKind.steps, NOWHERE)
LOAD_STEPS = ("runs_staged", "tombstones_written", "committed", NOWHERE)


class Deck:
    """The step at which the next process dies: each step in turn, until a process has died there."""

    def __init__(self, chance: random.Random, *steps: str) -> None:
        self._steps = cycle(chance.sample(steps, len(steps)))
        self.step = next(self._steps)

    def turn(self) -> None:
        self.step = next(self._steps)


class Decks:
    """The steps of everything that can die, shared by all walks."""

    def __init__(self, chance: random.Random) -> None:
        self.of_run = Deck(chance, *RUN_STEPS)
        self.of_load = Deck(chance, *LOAD_STEPS)
        self.of_compact = Deck(chance, *COMPACT_STEPS, NOWHERE)
        self.of_vacuum = Deck(chance, *VACUUM_STEPS, NOWHERE)


@dataclass
class Walk:
    """One table with all its writers, and a dictionary of the expected rows."""

    folder: Path
    chance: random.Random
    decks: Decks
    log: MemoryLog = field(default_factory=lambda: MemoryLog({ZERO: {}, ONE: {}}))
    died_at: set[str] = field(default_factory=set)
    vectors: bool = True
    _newest: dict[Key, dict[str, Any]] = field(default_factory=dict)
    _sent: list[dict[str, Any]] = field(default_factory=list)
    _fresh: list[int] = field(default_factory=list)
    _loads: int = 0

    def __post_init__(self) -> None:
        self._fresh = self.chance.sample(range(1_000_000), 5000)
        """Unused sequences, in random order."""
        self.write_job()

    def write_job(self) -> None:
        self._file.write_text(JOB.format(log=self.log_section(), path=self.path, vectors=str(self.vectors).lower()))

    def log_section(self) -> str:
        return KAFKA

    @property
    def open_log(self) -> OpenLog:
        return lambda job: self.log.view(job.log)

    def send(self, partition: Partition, value: bytes) -> None:
        self.log.append(partition, MemoryRecord(value, at=1_770_000_000.0))

    @property
    def path(self) -> str:
        return str(self.folder / "table")

    @property
    def job(self) -> JobSpec:
        return load_job(self._file)

    @property
    def _file(self) -> Path:
        return self.folder / "walk.yaml"

    def step(self) -> None:
        acts: list[Callable[[], None]] = [self.run, self.run, self.run, self.race, self.load, self.compact, self.vacuum]
        self.chance.choice(acts)()

    def put(self) -> None:
        """Inserts, updates and deletes, out of order; and records that a producer sends again."""
        for _ in range(self.chance.randrange(1, 15)):
            again = self._sent and self.chance.random() < 0.2
            record = self.chance.choice(self._sent) if again else self._record()
            self._sent.append(record)
            self._note(record)
            self.send(self.chance.choice([ZERO, ONE]), json.dumps(record).encode())

    def run(self) -> None:
        """One process with all partitions, or with one of them."""
        self.put()
        partitions = self.chance.choice([(ZERO, ONE), (ZERO,), (ONE,)])
        self._dying(self.decks.of_run, lambda environment: self._run(environment, *partitions))

    def race(self) -> None:
        """While one process is at some step, another with the other partition, or a compaction, completes."""
        self.put()
        self._created()
        rivals: list[Callable[[], object]] = [lambda: self._run(Environment(), ONE), self.compact]
        waiting = [self.chance.choice(rivals)]
        step = self.chance.choice(RUN_STEPS)

        def at_step(reached: str) -> None:
            if reached == step and waiting:
                waiting.pop()()

        self._run(Environment(at_step=at_step), ZERO)

    def load(self) -> None:
        """Load rows of a file; a load that dies is repeated until it completes."""
        rows = [{**self._record(), "gone": False} for _ in range(self.chance.randrange(1, 10))]
        self._loads += 1
        file = self.folder / f"{self._loads}.parquet"
        pl.DataFrame(rows).write_parquet(file)
        kind = kind_of(self.job)
        assert isinstance(kind, Loading)
        load = partial(kind.load, self.job, [str(file)], SaveMode.APPEND, local_session())
        if not self._dying(self.decks.of_load, load):
            load(Environment())
        for row in rows:
            self._note(row)

    def compact(self) -> None:
        self._created()
        compact = kind_of(self.job).compact
        self._dying(self.decks.of_compact, lambda environment: compact(self.job, CompactRequest(), environment, None))

    def vacuum(self) -> None:
        self._created()
        vacuum = kind_of(self.job).vacuum
        self._dying(self.decks.of_vacuum, lambda environment: vacuum(self.job, VacuumRequest(), environment))

    def check_final_state(self) -> None:
        """Run a process to the end: the table equals the dictionary, and `verify` agrees."""
        self._run(Environment(), ZERO, ONE)
        expected = {key: row["value"] for key, row in self._newest.items() if not row["gone"]}
        assert self.rows() == expected
        report = verify(self.job, values=Sample(None), open_log=self.open_log)
        open_questions = {question.what.split(maxsplit=1)[1] for check in report.checks for question in check.unproven}
        assert report.verdict is not Verdict.VIOLATED, [check for check in report.checks if not check.ok]
        assert open_questions <= {OPEN["loaded"], OPEN["lost"]}

    def rows(self) -> dict[Key, int]:
        frame = pl.read_delta(self.path)
        result = {(device, number): value for device, number, value in frame["device", "number", "value"].iter_rows()}
        assert len(result) == len(frame), "a key is there twice"
        return result

    def _created(self) -> None:
        if not Path(self.path).exists():
            self._run(Environment(), ZERO, ONE)

    def _run(self, environment: Environment, *partitions: Partition) -> None:
        claims = None if len(partitions) == 2 else Holding(*partitions)
        finish(open_rounds(self.job, local_session(), environment, claims, self.open_log))

    def _dying(self, deck: Deck, act: Callable[[Environment], object]) -> bool:
        """Whether the act completed."""
        step = deck.step
        try:
            act(Environment(at_step=crash_at(step)))
        except CrashError:
            self.died_at.add(step)
            deck.turn()
            return False
        if step == NOWHERE:
            deck.turn()
        return True

    def _record(self) -> dict[str, Any]:
        device, number = self.chance.choice("abc"), self.chance.randrange(8)
        seq = self._fresh.pop()
        return {"device": device, "number": number, "value": seq, "gone": self.chance.random() < 0.2, "seq": seq}

    def _note(self, record: dict[str, Any]) -> None:
        key = (record["device"], record["number"])
        if key not in self._newest or self._newest[key]["seq"] < record["seq"]:
            self._newest[key] = record
