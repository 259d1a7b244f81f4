"""Claims on a real broker for minutes: 6 processes, 24 partitions; kills, pauses, joins, leaves, broker restarts.

At least once is complete, at most once is never twice and its ledger complete; after a kill nothing is unowned for
longer than three intervals, no other process pauses for longer than a second, and no running process is declared gone.
`PENSTOCK_SEED` replays the actions, `PENSTOCK_CHAOS_SECONDS` is their length (600).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.claims.admin.log_reader import CoordinatedGroup, LogReader
from penstock.claims.member.journal import JournalEntry
from penstock.claims.member.session import catch_up
from penstock.embedded.broker import Cluster
from penstock.errors import PenstockError
from penstock.job.spec import KafkaLogSpec
from tests.soak.claims_timeline import Timeline
from tests.soak.claims_worker import AT_LEAST_ONCE, AT_MOST_ONCE, COORDINATION
from tests.support.kafka import Produce, Topics

SECONDS = float(os.environ.get("PENSTOCK_CHAOS_SECONDS", "600"))
SEED = int(os.environ.get("PENSTOCK_SEED", "11"))
PROCESSES = 6
PARTITIONS = 24
HEARTBEAT_SECONDS = 2.0
UNOWNED_SECONDS_MAX = 3 * HEARTBEAT_SECONDS
PAUSE_SECONDS_MAX = 1.0
GIVEN_UP_SHARE_MAX = 0.1
"""Of the records at most once: a ledger with everything in it would be complete, too."""
ACTION_SECONDS = 4 * HEARTBEAT_SECONDS
ACTIONS = ("kill", "kill", "kill", "sleep", "leave", "join", "restart")
DRAIN_SECONDS_MAX = 180.0
ALL_MEMBERS = ""


@dataclass
class Worker:
    """A process that is started again whenever it ends."""

    client_id: str
    arguments: list[str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", "tests.soak.claims_worker", *self.arguments])

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.send(number)
            self.process.wait(60)


@dataclass
class Chaos:
    """The actions, and when they happened: some excuse a pause."""

    workers: list[Worker]
    guest: Worker
    cluster: Cluster
    rng: random.Random
    excused: list[tuple[str, float, float]] = field(default_factory=list)
    """Who could not be expected to go on, from when to when."""
    kills: list[tuple[str, float]] = field(default_factory=list)
    actions: Counter[str] = field(default_factory=Counter)
    _left: list[str] = field(default_factory=list)

    def act(self) -> None:
        """Do one thing, and leave the group alone for a while."""
        self._left = self._left or self.rng.sample(ACTIONS, len(ACTIONS))
        name, worker, began_at = self._left.pop(), self.rng.choice(self.workers), time.time()
        self.actions[name] += 1
        match name:
            case "kill":
                worker.end(signal.SIGKILL)
                self.kills.append((worker.client_id, time.time()))
                self.excused.append((worker.client_id, began_at, began_at + UNOWNED_SECONDS_MAX))
                time.sleep(self.rng.uniform(2, 4) * HEARTBEAT_SECONDS)
                worker.start()
            case "sleep":
                worker.send(signal.SIGSTOP)
                time.sleep(self.rng.uniform(0.5, 4) * HEARTBEAT_SECONDS)
                worker.send(signal.SIGCONT)
                self.excused.append((worker.client_id, began_at, time.time() + HEARTBEAT_SECONDS))
            case "leave":
                worker.end(signal.SIGTERM)
                worker.start()
            case "join":
                self.guest.start()
                time.sleep(self.rng.uniform(2, 6) * HEARTBEAT_SECONDS)
                self.guest.end(signal.SIGTERM)
            case "restart":
                self.cluster.kill()
                time.sleep(self.rng.uniform(0, 2) * HEARTBEAT_SECONDS)
                self.cluster.restart()
                self.excused.append((ALL_MEMBERS, began_at, time.time() + 10 * HEARTBEAT_SECONDS))
                time.sleep(6 * HEARTBEAT_SECONDS)
        time.sleep(ACTION_SECONDS)

    def excuses(self, client_id: str, began_at: float, ended_at: float) -> bool:
        """Whether a process slept or was killed, or the broker was away, at some time between these two."""
        return any(
            who in (client_id, ALL_MEMBERS) and began_at <= end and ended_at >= begin
            for who, begin, end in self.excused
        )


@dataclass(frozen=True)
class WorkerLines:
    """What the processes wrote down: what they executed, how long they paused, and what ended them."""

    executed: dict[str, Counter[tuple[int, int]]]
    pauses: list[tuple[str, float, float]]
    ended: Counter[str]

    @classmethod
    def by(cls, folder: Path) -> WorkerLines:
        written = cls({AT_LEAST_ONCE: Counter(), AT_MOST_ONCE: Counter()}, [], Counter())
        for path in folder.glob("*.txt"):
            for line in path.read_text().splitlines():
                match line.split():
                    case ["x", group, partition, offset]:
                        written.executed[group][int(partition), int(offset)] += 1
                    case ["p", began_at, seconds]:
                        written.pauses.append((path.stem, float(began_at), float(seconds)))
                    case ["e", *error]:
                        written.ended[" ".join(error)[:100]] += 1
        return written


@dataclass(frozen=True)
class Groups:
    """Both groups as the broker knows them."""

    bootstrap: str
    topic: str

    def places(self) -> set[tuple[int, int]]:
        """Every record of the topic: nothing is deleted, and nothing is transactional, so every offset holds one."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "places"})
        try:
            ends = [
                consumer.get_watermark_offsets(TopicPartition(self.topic, number), timeout=30)[1]
                for number in range(PARTITIONS)
            ]
        finally:
            consumer.close()
        return {(number, offset) for number, end in enumerate(ends) for offset in range(end)}

    def losses(self) -> set[tuple[int, int]]:
        with LogReader(self._group(AT_MOST_ONCE)) as reader:
            reader.catch_up()
            return {
                (partition.number, offset)
                for partition, claim in reader.view.state.claims.items()
                for start, end in claim.given_up
                for offset in range(start, end)
            }

    def owned(self) -> bool:
        try:
            return all(self._owned(group) == PARTITIONS for group in (AT_LEAST_ONCE, AT_MOST_ONCE))
        except PenstockError:
            return False

    def _owned(self, group: str) -> int:
        with LogReader(self._group(group)) as reader:
            reader.catch_up()
            return sum(claim.held for _, claim in reader.view.state.claims.items())

    def timeline(self, group: str) -> Timeline:
        with LogReader(self._group(group)) as reader:
            entries: list[JournalEntry] = []
            catch_up(reader.journal, entries.extend, 0)
            return Timeline.of(entries)

    def _group(self, group: str) -> CoordinatedGroup:
        return CoordinatedGroup(KafkaLogSpec(self.bootstrap), group, COORDINATION.topic)


def test_ten_minutes_of_random_failures_lose_no_claim_and_no_record(tmp_path: Path) -> None:
    folder = tmp_path / "executed"
    folder.mkdir()
    with Cluster.start(tmp_path / "kafka") as cluster:
        topic = Topics(cluster.bootstrap)(partitions=PARTITIONS)
        groups = Groups(cluster.bootstrap, topic)
        workers = [
            Worker(name, [cluster.bootstrap, topic, name, str(HEARTBEAT_SECONDS), str(folder / f"{name}.txt")])
            for name in (f"m{number}" for number in range(PROCESSES + 1))
        ]
        guest = workers.pop()
        chaos = Chaos(workers, guest, cluster, random.Random(SEED))
        stop = threading.Event()
        flow = threading.Thread(target=produce_until, args=(cluster.bootstrap, topic, stop), daemon=True)
        try:
            for worker in workers:
                worker.start()
            wait(groups.owned, 120)
            flow.start()
            time.sleep(5 * HEARTBEAT_SECONDS)
            stable_at, end = time.time(), time.monotonic() + SECONDS
            while time.monotonic() < end:
                chaos.act()
                for worker in workers:
                    if worker.process is not None and worker.process.poll() is not None:
                        worker.start()
            stop.set()
            flow.join(60)
            places = groups.places()
            wait(lambda: places <= WorkerLines.by(folder).executed[AT_LEAST_ONCE].keys(), DRAIN_SECONDS_MAX)
            wait(
                lambda: places <= WorkerLines.by(folder).executed[AT_MOST_ONCE].keys() | groups.losses(),
                DRAIN_SECONDS_MAX,
            )
            losses = groups.losses()
            timelines = {group: groups.timeline(group) for group in (AT_LEAST_ONCE, AT_MOST_ONCE)}
        finally:
            for worker in (*workers, guest):
                worker.end(signal.SIGKILL)
        written = WorkerLines.by(folder)
        failures = executions_failed(written, places, losses)
        for group, timeline in timelines.items():
            failures += ownership_failed(group, chaos, timeline, stable_at)
        failures += pauses_failed(chaos, written, stable_at)
        assert not failures, f"PENSTOCK_SEED={SEED}: " + "; ".join(failures)


def executions_failed(written: WorkerLines, places: set[tuple[int, int]], losses: set[tuple[int, int]]) -> list[str]:
    """What is wrong with what was executed, by what the processes wrote down themselves."""
    least, most = written.executed[AT_LEAST_ONCE], written.executed[AT_MOST_ONCE]
    lost = places - most.keys()
    print(
        f"\n{len(places)} records; at least once again: {least.total() - len(least)}; at most once: {len(most)}, "
        f"lost {len(lost)}, listed as lost {len(losses)}; members that ended: {dict(written.ended)}"
    )
    failures = [
        f"at least once left out {sorted(places - least.keys())[:5]}" if places - least.keys() else "",
        f"at most once lost {sorted(lost - losses)[:5]} without a line in the ledger" if lost - losses else "",
        f"at most once gave up {len(losses)} of {len(places)}"
        if len(losses) > GIVEN_UP_SHARE_MAX * len(places)
        else "",
        f"members ended: {dict(written.ended)}" if written.ended else "",
    ]
    twice = sorted(place for place, count in most.items() if count > 1)
    failures.append(f"at most once executed {twice[:5]} twice" if twice else "")
    return [failure for failure in failures if failure]


def ownership_failed(group: str, chaos: Chaos, timeline: Timeline, stable_at: float) -> list[str]:
    """What is wrong with who owned what and when, by the log."""
    unowned = [(who, max(timeline.unowned_seconds(who, at), default=0.0)) for who, at in chaos.kills]
    handovers = [
        (at, seconds)
        for at, seconds in timeline.handovers()
        if at > stable_at and not chaos.excuses(ALL_MEMBERS, at, at + seconds)
    ]
    slept = [item for item in chaos.excused if item[0] != ALL_MEMBERS]
    slow = [
        (round(at - stable_at), seconds)
        for at, seconds in handovers
        if seconds > PAUSE_SECONDS_MAX
        and not any(begin <= at + seconds and at <= end + HEARTBEAT_SECONDS for _, begin, end in slept)
    ]
    wrongly = [
        (round(at - stable_at), who)
        for at, who in timeline.forgotten
        if at > stable_at and not chaos.excuses(who, at - 3 * HEARTBEAT_SECONDS, at)
    ]
    print(
        f"{group}: unowned after kills {[round(seconds, 1) for _, seconds in unowned]}; {len(handovers)} handovers, "
        f"the longest {max((seconds for _, seconds in handovers), default=0.0):.2f} s"
    )
    too_long = [(at, seconds) for at, seconds in unowned if seconds > UNOWNED_SECONDS_MAX]
    failures = [
        f"{group}: unowned after a kill for {too_long}" if too_long else "",
        f"{group}: no kill took anything away" if not any(seconds for _, seconds in unowned) else "",
        f"{group}: handed over slowly: {slow}" if slow else "",
        f"{group}: running processes were declared gone: {wrongly}" if wrongly else "",
    ]
    return [failure for failure in failures if failure]


def pauses_failed(chaos: Chaos, written: WorkerLines, stable_at: float) -> list[str]:
    """Which processes paused though nothing happened to them."""
    pauses = [
        (round(began_at - stable_at), who, seconds)
        for who, began_at, seconds in written.pauses
        if began_at > stable_at and not chaos.excuses(who, began_at, began_at + seconds)
    ]
    longest = max((seconds for _, _, seconds in pauses), default=0.0)
    print(f"actions {dict(chaos.actions)}; {len(pauses)} pauses without an excuse, the longest {longest:.2f} s")
    long = [pause for pause in pauses if pause[2] > PAUSE_SECONDS_MAX]
    return [f"paused without an excuse: {long}"] if long else []


def produce_until(bootstrap: str, topic: str, stop: threading.Event) -> None:
    produce = Produce(bootstrap)
    while not stop.wait(0.2):
        # The broker may be away: the topic itself shows what arrived.
        with contextlib.suppress(AssertionError, KafkaException):
            produce(topic, [str(number) for number in range(20)])


def wait(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.5)
