"""The black box of exports: real exporters over real topics, and what the walk does to them."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import assert_never

from penstock.errors import TransientError
from tests.soak.box_events import TYPES, UNNAMED, Event, events, types_section
from tests.soak.box_reader import Place, difference, quarantined, visible
from tests.soak.box_walk import (
    EXPORTERS,
    Action,
    AddTopic,
    AddType,
    Break,
    Heal,
    Kill,
    LoseLogs,
    Maintain,
    Send,
    WaitAndCompare,
)
from tests.support.exports import data_files
from tests.support.jobs import KILLED
from tests.support.kafka import Produce, Topics
from tests.support.processes import PenstockProcess, command_json
from tests.support.waiting import wait_until

PARTITIONS = 5
WAIT_SECONDS_MAX = 420.0
RENAME_EXCHANGE = 2
AT_FDCWD = -100

JOB = """\
job: box
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topics}]}}
decode: json
route: {{by: field(type)}}
event_time: at
types: {{{types}}}
days: {{complete_after: 1h}}
table:
  export: {{path: "{root}"}}
claims: {{client_id: {client}, heartbeat: 2s, topic: {claims}}}
flush: {{allowed_latency: 500ms, max_messages_per_batch: 500, min_bytes_per_file: 1B, max_bytes_per_batch: 1B}}
on: {{bad_share: 1}}
limits: {{transient_retries: 20, shutdown: 60s}}
spark: {{master: "local[1,4]", conf: {{spark.driver.memory: 600m}}}}
"""


@dataclass(slots=True)
class Exporter:
    """One process of the group, or its successor."""

    job: Path
    process: PenstockProcess
    armed: bool


@dataclass(slots=True)
class World:
    """Topics, exporters, the root, and every record that was ever sent."""

    folder: Path
    bootstrap: str
    log: Callable[[str], None]
    sent: dict[Place, Event] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    exporters: list[Exporter] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    losses: int = 0
    type_added: bool = False

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def job(self) -> Path:
        return self.folder / "exporter-0.yaml"

    def open(self) -> None:
        self._add_topic()
        for number in range(EXPORTERS):
            path = self.folder / f"exporter-{number}.yaml"
            self.exporters.append(Exporter(path, _run(path), armed=False))

    def close(self) -> None:
        for exporter in self.exporters:
            exporter.process.close()

    def act(self, action: Action) -> None:
        """Carry out one action; exporters that died at an armed step are replaced first."""
        begun_at = time.monotonic()
        self._tend()
        match action:
            case Send():
                self._send(action)
            case Kill():
                self._kill(self.exporters[action.exporter], action.failpoint)
            case Maintain():
                self.maintain(action)
            case Break():
                self._break(action.type)
            case Heal():
                self._heal(action.type)
            case AddType():
                self._add_type(action.failpoint)
            case AddTopic():
                self.stop()
                self._add_topic()
                self._start()
            case LoseLogs():
                self._lose_logs(action)
            case WaitAndCompare():
                self.wait_and_compare()
            case _:
                assert_never(action)
        self.log(f"{time.monotonic() - begun_at:6.1f} s  {action}")

    def wait_and_compare(self) -> None:
        """Wait until the types that can be written are whole, then compare every row."""
        whole = self._whole_types()
        expected = Counter(item.type for item in self.sent.values())

        def there() -> bool:
            self._tend()
            return all(visible(self.root, name) == expected[name] for name in whole)

        wait_until(there, WAIT_SECONDS_MAX, lambda: f"{difference(self.root, self.sent, whole)}\n{self._output()}")
        self.compare()

    def compare(self) -> None:
        """Compare what another engine reads with what was sent; types that are broken just now are left out."""
        result = difference(self.root, self.sent, self._whole_types())
        assert not result, f"{result}\n{self._output()}"

    def compare_quarantine(self) -> None:
        """Each bad record is in quarantine; a second time only if a rebuilt job log made its type read again."""
        result = quarantined(self.root)
        bad = {place for place, item in self.sent.items() if item.type is None}
        assert set(result) == bad, f"missing {list(bad - set(result))[:5]}, not bad {list(set(result) - bad)[:5]}"
        twice = [place for place, count in result.items() if count > 1]
        assert not twice or self.losses, f"twice in quarantine: {twice[:5]}"

    def stop(self) -> None:
        """Stop the exporters regularly, without armed failpoints."""
        for exporter in self.exporters:
            if exporter.armed:
                self._kill(exporter, "")
        for item in self.exporters:
            _wait_for_work(item.process)
            item.process.send(signal.SIGTERM)
        for stopped in self.exporters:
            assert stopped.process.exit_code() == 0, stopped.process.last_words

    def maintain(self, action: Maintain) -> None:
        command, *options = action.command
        self._command(command, str(self.job), *options, failpoint=action.failpoint)

    def _command(self, *arguments: str, failpoint: str) -> None:
        process = PenstockProcess(*arguments, failpoint=failpoint, own_spark=True)
        try:
            code = process.exit_code()
            self.ended[f"{arguments[0]} {code}"] += 1
            assert code in (0, KILLED if failpoint else 0), process.last_words
        finally:
            process.close()

    def _whole_types(self) -> list[str]:
        """The types that can be written and whose records are all out of quarantine."""
        return [name for name in (*TYPES, *([UNNAMED] if self.type_added else [])) if name not in self.broken]

    def _add_type(self, failpoint: str) -> None:
        """Routes may change only while no record waits for a type: broken ones are healed first."""
        for name in sorted(self.broken):
            self._heal(name)
        self.wait_and_compare()
        self.stop()
        self.type_added = True
        self._describe()
        self._start()
        for armed in (failpoint, ""):
            self._command("quarantine", "replay", str(self.job), failpoint=armed)
        self.wait_and_compare()

    def _start(self) -> None:
        for exporter in self.exporters:
            exporter.process, exporter.armed = _run(exporter.job), False

    def _tend(self) -> None:
        """Replace exporters that died at an armed step or by a transient error; any other exit fails the test."""
        for exporter in self.exporters:
            if exporter.process.ended(0):
                code = exporter.process.exit_code()
                self.ended[f"run {code}"] += 1
                assert code in (KILLED if exporter.armed else 0, TransientError.exit_code), exporter.process.last_words
                exporter.process, exporter.armed = _run(exporter.job), False

    def _kill(self, exporter: Exporter, failpoint: str) -> None:
        _wait_for_work(exporter.process)
        exporter.process.send(signal.SIGKILL)
        exporter.process.exit_code()
        self.ended["run killed"] += 1
        exporter.process, exporter.armed = _run(exporter.job, failpoint), bool(failpoint)

    def _send(self, action: Send) -> None:
        rng = Random(action.seed)
        new = list(events(action.seed, len(self.sent), action.rows, action.day))
        places = [(rng.choice(self.topics), rng.randrange(PARTITIONS)) for _ in new]
        for topic, partition in sorted(set(places)):
            batch = [item for item, place in zip(new, places, strict=True) if place == (topic, partition)]
            landed = Produce(self.bootstrap)(topic, [item.value for item in batch], partition=partition)
            self.sent |= {(topic, *place): item for place, item in zip(landed, batch, strict=True)}

    def _add_topic(self) -> None:
        name = Topics(self.bootstrap)(partitions=PARTITIONS, config={"retention.ms": "-1"})
        self.topics.append(name)
        self._describe()

    def _describe(self) -> None:
        """Write the job files."""
        for number in range(EXPORTERS):
            text = JOB.format(
                bootstrap=self.bootstrap,
                topics=", ".join(self.topics),
                types=types_section(type_added=self.type_added),
                root=self.root,
                client=f"exporter-{number}",
                claims=f"{self.topics[0]}_claims",
            )
            (self.folder / f"exporter-{number}.yaml").write_text(text)

    def _break(self, name: str) -> None:
        (self.folder / "aside").mkdir(exist_ok=True)
        self.root.mkdir(exist_ok=True)
        (self.root / name).mkdir(exist_ok=True)
        (self.folder / "aside" / name).write_text("in the way")
        _exchange(self.folder / "aside" / name, self.root / name)
        self.broken.add(name)

    def _heal(self, name: str) -> None:
        if name not in self.broken:
            return
        _exchange(self.folder / "aside" / name, self.root / name)
        (self.folder / "aside" / name).unlink()
        self.broken.discard(name)

    def _lose_logs(self, action: LoseLogs) -> None:
        self.wait_and_compare()
        self.stop()
        for name in action.broken:
            self._heal(name)
        home = self.root / "_penstock" / "box"
        shutil.rmtree(home / "_delta_log")
        if not action.types_stay:
            shutil.rmtree(home / "types")
        self.log(f"rebuilt: {command_json('rebuild', str(self.job))['positions']}")
        self.losses += 1
        self._start()

    def _output(self) -> str:
        files = len(data_files(self.root))
        return "\n".join(
            [f"{files} files, broken: {self.broken}", *(exporter.process.last_words for exporter in self.exporters)]
        )


def _run(job: Path, failpoint: str = "") -> PenstockProcess:
    return PenstockProcess("run", str(job), "--json", failpoint=failpoint, own_spark=True)


def _wait_for_work(process: PenstockProcess) -> None:
    """Wait until the process has won a claim, or has ended."""

    def at_work() -> bool:
        return process.ended(0) or any(event["event"] == "claim won" for event in process.events_read)

    wait_until(at_work, WAIT_SECONDS_MAX, lambda: process.last_words)


def _exchange(one: Path, other: Path) -> None:
    """Exchange two names atomically: no exporter finds the folder of a type missing and creates it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2", str(other))
