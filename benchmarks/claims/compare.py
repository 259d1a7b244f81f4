"""`bench claims`: many members share many partitions through the coordination topic, against Kafka's consumer groups.

All members live in this process, each with its own thread and Kafka clients, over one real broker; with `processes`
each in a process of its own. CPU is that of all members and of the broker together, on both sides.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from benchmarks.claims.members import (
    BASELINE_NAME,
    UNFAIR,
    WAIT_SECONDS_MAX,
    Consuming,
    Processes,
    Recruit,
    Threads,
    claiming,
    client_id,
    fair,
    wait_until,
)
from benchmarks.meters import BenchResult, Meter, Report
from penstock.claims.member.agent import Agent
from penstock.claims.member.topics import DEFAULT_PARTITIONS, DEFAULT_TOPIC
from penstock.embedded.broker import Cluster
from penstock.embedded.sample import create_topic
from penstock.errors import TransientError
from penstock.logs.log import Partition

GROUP = "bench"
STARTS = 5
"""How often start-up is measured; the median counts."""
STEADY_INTERVALS = 2
COMPILING_INTERVALS = 12
"""How long all members rest first: a broker that has just started compiles its code for about two minutes."""
_DATA_TOPIC = "bench_claims"


@dataclass(frozen=True, slots=True)
class ClaimsBench:
    """How many members share how many partitions, and how often each sends a heartbeat."""

    members: int = 50
    partitions: int = 1000
    heartbeat_seconds: float = 10.0
    processes: bool = False


def bench_claims(bench: ClaimsBench, report: Report) -> BenchResult:
    """Start all members at once, then measure what one more, one less and silence cost; then the same by Kafka.

    Of members in processes only the shares and silence are measured.
    """
    consuming = lambda _, bootstrap: Consuming(bootstrap, _DATA_TOPIC)  # noqa: E731
    with (
        closing(Processes(bench.members, _recruit(bench)) if bench.processes else _Crew(bench)) as ours,
        closing((Processes if bench.processes else Threads)(bench.members, consuming)) as theirs,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Cluster.start(Path(folder)) as cluster,
    ):
        report(f"{bench.members} members share {bench.partitions:,} partitions")
        spent = ours.stable(cluster.bootstrap, bench.partitions)
        records = _records(cluster.bootstrap)
        report(f"stable after {spent.wall_s} s wall, {spent.cpu_s} s CPU, {records:,} records")
        measured = {"stable_s": spent.wall_s, "cpu_s": spent.cpu_s, **_steady(cluster.bootstrap, bench, report)}
        if isinstance(ours, _Crew):
            measured |= _changes(ours, report)
        ours.close()
        measured["broker_cores"] = _cores(bench)
        report(f"the broker without members: {measured['broker_cores']} cores")
        report("the same by a consumer group")
        create_topic(cluster.bootstrap, _DATA_TOPIC, bench.partitions)
        baseline = theirs.stable(cluster.bootstrap, bench.partitions)
        theirs.close()
        report(f"stable after {baseline.wall_s} s wall, {baseline.cpu_s} s CPU")
    return BenchResult("claims", records, spent, BASELINE_NAME, baseline, {**asdict(bench), **measured})


def _steady(bootstrap: str, bench: ClaimsBench, report: Report) -> dict[str, float]:
    """Records per second and cores while nothing happens, of the members and the broker."""
    time.sleep(COMPILING_INTERVALS * bench.heartbeat_seconds)
    before, meter = _records(bootstrap), Meter()
    cores = _cores(bench)
    records_per_s = round((_records(bootstrap) - before) / meter.spent().wall_s, 1)
    report(f"steady: {records_per_s} records/s, {cores} cores")
    return {"records_per_s": records_per_s, "steady_cores": cores}


def _cores(bench: ClaimsBench) -> float:
    """What all processes use while nothing happens."""
    meter = Meter()
    time.sleep(STEADY_INTERVALS * bench.heartbeat_seconds)
    spent = meter.spent()
    return round(spent.cpu_s / spent.wall_s, 3)


def _changes(crew: _Crew, report: Report) -> dict[str, Any]:
    starts = [crew.start_up(number) for number in range(STARTS)]
    startup_s = round(statistics.median(partition[0] for partition in starts), 3)
    startup_records = int(statistics.median(item[1] for item in starts))
    report(f"start-up: {startup_s} s, {startup_records} records")
    join_s = crew.join_one()
    report(f"one more member had its share after {join_s} s")
    takeover_s = crew.lose_one()
    report(f"the partitions of a killed member were held again after {takeover_s} s")
    return {"startup_s": startup_s, "startup_records": startup_records, "join_s": join_s, "takeover_s": takeover_s}


class _Crew(Threads[Agent]):
    """Our members in this process."""

    def __init__(self, bench: ClaimsBench) -> None:
        super().__init__(bench.members, _recruit(bench))
        self._bench = bench

    def start_up(self, number: int) -> tuple[float, int]:
        """Seconds and records that a new member needs to read the state; its group shares no partitions."""
        with self._started(claiming(f"{GROUP}-reader", self._bench.heartbeat_seconds, ()), number) as agent:
            wait_until(lambda: agent.startup_seconds is not None, "a newcomer did not read the log")
            return agent.startup_seconds or 0.0, agent.startup_records

    def join_one(self) -> float:
        """Seconds until one more member has its share."""
        began_at = time.monotonic()
        with self._started(self._recruit, self._bench.members) as agent:
            self.wait_fair(self._bench.partitions, agent)
            seconds = time.monotonic() - began_at
        self.wait_fair(self._bench.partitions)
        return round(seconds, 3)

    def lose_one(self) -> float:
        """Seconds until the partitions of a member that was killed are held again."""
        number = self._bench.members + 1
        victim = multiprocessing.get_context("spawn").Process(target=_run, args=(self._bench, number, self.bootstrap))
        victim.start()
        try:
            share = self._bench.partitions // (self._bench.members + 1)
            wait_until(
                lambda: self._counts()[client_id(number)] >= share, "the member to be killed did not get its share"
            )
        finally:
            victim.kill()
            victim.join()
        began_at = time.monotonic()
        self.wait_fair(self._bench.partitions)
        return round(time.monotonic() - began_at, 3)

    def wait_fair(self, partitions: int, *newcomers: Agent) -> None:
        members = [*self.members, *newcomers]
        # First as one member sees it: to ask each of them all the time would slow them down.
        wait_until(lambda: len(held := self._counts()) == len(members) and fair(held.values(), partitions), UNFAIR)
        wait_until(lambda: fair([len(member.held()) for member in members], partitions), UNFAIR)

    def _counts(self) -> Counter[str]:
        """How many partitions each member holds, as the first member sees it."""
        try:
            with self.members[0].looking() as participant:
                claims = [claim for _, claim in participant.view.state.claims.items() if claim.held]
        except TransientError:
            return Counter()
        return Counter(claim.owner.client_id for claim in claims if claim.owner is not None)

    @contextmanager
    def _started(self, recruit: Recruit[Agent], number: int) -> Iterator[Agent]:
        with closing(recruit(number, self.bootstrap)) as agent:
            agent.start()
            yield agent


def _recruit(bench: ClaimsBench) -> Recruit[Agent]:
    partitions = [Partition(_DATA_TOPIC, "benchTopicId", number) for number in range(bench.partitions)]
    return claiming(GROUP, bench.heartbeat_seconds, partitions)


def _run(bench: ClaimsBench, number: int, bootstrap: str) -> None:
    """A member in a process that is to be killed."""
    _recruit(bench)(number, bootstrap).start()
    threading.Event().wait(WAIT_SECONDS_MAX)


def _records(bootstrap: str) -> int:
    """How many records the coordination topic holds."""
    places = [TopicPartition(DEFAULT_TOPIC, place) for place in range(DEFAULT_PARTITIONS)]
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})) as consumer:
        return sum(consumer.get_watermark_offsets(item, timeout=30)[1] for item in places)
