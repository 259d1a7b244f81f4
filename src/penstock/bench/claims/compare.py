"""`bench claims`: many members share many partitions through the coordination topic, against Kafka's consumer groups.

All members live in this process, each with its own thread and Kafka clients, over one real broker; with `processes`
each in a process of its own. CPU is that of all members and of the broker together, on both sides.

python -m penstock.bench.claims.compare BOOTSTRAP PARTITIONS HEARTBEAT_SECONDS: one more member, to be killed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from penstock.bench.claims.members import (
    BASELINE_NAME,
    WAIT_SECONDS_MAX,
    Crew,
    claiming,
    consuming,
    fair,
    run_consumer_group,
    wait_until,
)
from penstock.bench.meters import BenchResult, Meter, Say
from penstock.claims.member.agent import Agent
from penstock.claims.member.membership import MemberOptions
from penstock.claims.member.topics import DEFAULT_PARTITIONS, DEFAULT_TOPIC
from penstock.embedded.broker import Cluster
from penstock.embedded.sample import create_topic
from penstock.errors import TransientError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.log import Partition

GROUP = "bench"
STARTS = 5
"""How often start-up is measured; the median counts."""
STEADY_INTERVALS = 2
_DATA_TOPIC = "bench_claims"
_VICTIM = "victim"


@dataclass(frozen=True, slots=True)
class ClaimsBench:
    """How many members share how many partitions, and how often each says that it lives."""

    members: int = 50
    partitions: int = 1000
    heartbeat_seconds: float = 10.0
    processes: bool = False


def bench_claims(bench: ClaimsBench, say: Say) -> BenchResult:
    """Start all members at once, then measure what one more, one less and silence cost; then the same by Kafka."""
    if bench.processes:
        return _bench_processes(bench, say)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, Cluster.start(Path(folder)) as cluster:
        say(f"{bench.members} members share {bench.partitions:,} partitions")
        with closing(_Crew(KafkaLogSpec(cluster.bootstrap), bench)) as crew:
            meter = Meter()
            crew.start_all()
            crew.wait_fair()
            spent = meter.spent()
            records = crew.records()
            say(f"stable after {spent.wall_s} s wall, {spent.cpu_s} s CPU, {records:,} records")
            extra = _measure(crew, say)
        say("the same by a consumer group")
        create_topic(cluster.bootstrap, _DATA_TOPIC, bench.partitions)
        baseline = run_consumer_group(cluster.bootstrap, _DATA_TOPIC, bench.members, bench.partitions)
        say(f"stable after {baseline.wall_s} s wall, {baseline.cpu_s} s CPU")
    measured = {"stable_s": spent.wall_s, "cpu_s": spent.cpu_s, **extra}
    return BenchResult("claims", records, spent, BASELINE_NAME, baseline, {**asdict(bench), **measured})


def _bench_processes(bench: ClaimsBench, say: Say) -> BenchResult:
    """The same to stable shares, with every member in a process of its own."""
    partitions = _partitions(bench.partitions)
    with (
        closing(Crew(bench.members, claiming(GROUP, bench.heartbeat_seconds, partitions))) as ours,
        closing(Crew(bench.members, consuming(_DATA_TOPIC))) as theirs,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Cluster.start(Path(folder)) as cluster,
    ):
        say(f"{bench.members} processes share {bench.partitions:,} partitions")
        spent = ours.stable(cluster.bootstrap, bench.partitions)
        records = _records(cluster.bootstrap)
        say(f"stable after {spent.wall_s} s wall, {spent.cpu_s} s CPU, {records:,} records")
        time.sleep(bench.heartbeat_seconds)
        meter = Meter()
        time.sleep(STEADY_INTERVALS * bench.heartbeat_seconds)
        steady = meter.spent()
        steady_cores = round(steady.cpu_s / steady.wall_s, 3)
        say(f"steady: {steady_cores} cores")
        ours.close()
        say("the same by a consumer group")
        create_topic(cluster.bootstrap, _DATA_TOPIC, bench.partitions)
        baseline = theirs.stable(cluster.bootstrap, bench.partitions)
        say(f"stable after {baseline.wall_s} s wall, {baseline.cpu_s} s CPU")
    measured = {"stable_s": spent.wall_s, "cpu_s": spent.cpu_s, "steady_cores": steady_cores}
    return BenchResult("claims", records, spent, BASELINE_NAME, baseline, {**asdict(bench), **measured})


def _measure(crew: _Crew, say: Say) -> dict[str, Any]:
    records_per_s, steady_cores = crew.steady()
    say(f"steady: {records_per_s} records/s, {steady_cores} cores")
    starts = [crew.start_up(number) for number in range(STARTS)]
    startup_s = round(statistics.median(each[0] for each in starts), 3)
    startup_records = int(statistics.median(each[1] for each in starts))
    say(f"start-up: {startup_s} s, {startup_records} records")
    join_s = crew.join_one()
    say(f"one more member had its share after {join_s} s")
    takeover_s = crew.lose_one()
    say(f"the partitions of a killed member were held again after {takeover_s} s")
    return {
        "records_per_s": records_per_s,
        "steady_cores": steady_cores,
        "startup_s": startup_s,
        "startup_records": startup_records,
        "join_s": join_s,
        "takeover_s": takeover_s,
    }


class _Crew:
    """The members of the benchmark."""

    def __init__(self, spec: KafkaLogSpec, bench: ClaimsBench) -> None:
        self._spec = spec
        self._bench = bench
        self._partitions = _partitions(bench.partitions)
        self._agents = [self._agent(GROUP, f"member-{number:03}") for number in range(bench.members)]

    def start_all(self) -> None:
        for agent in self._agents:
            agent.start()

    def wait_fair(self) -> None:
        wait_until(lambda: self._looks_fair(self._bench.members), "the members did not come to fair shares")
        wait_until(lambda: self._fair(self._agents), "the members did not come to fair shares")

    def records(self) -> int:
        return _records(self._spec.bootstrap)

    def steady(self) -> tuple[float, float]:
        """Records and CPU seconds per second while nothing happens."""
        # Whatever the last joiners stirred up is over after one interval.
        time.sleep(self._bench.heartbeat_seconds)
        before, meter = self.records(), Meter()
        time.sleep(STEADY_INTERVALS * self._bench.heartbeat_seconds)
        spent = meter.spent()
        return round((self.records() - before) / spent.wall_s, 1), round(spent.cpu_s / spent.wall_s, 3)

    def start_up(self, number: int) -> tuple[float, int]:
        """Seconds and records that a newcomer needs to know the state; it is of a group that shares nothing."""
        agent = self._agent(f"{GROUP}-reader", f"reader-{number}", ())
        agent.start()
        with closing(agent):
            wait_until(lambda: agent.startup.seconds > 0, "a newcomer did not read the log")
            return agent.startup.seconds, agent.startup.records

    def join_one(self) -> float:
        """Seconds until one more member has its share."""
        agent = self._agent(GROUP, "newcomer")
        began_at = time.monotonic()
        agent.start()
        with closing(agent):
            wait_until(lambda: self._looks_fair(self._bench.members + 1), "a newcomer did not get its share")
            wait_until(lambda: self._fair([*self._agents, agent]), "a newcomer did not get its share")
            seconds = time.monotonic() - began_at
        self.wait_fair()
        return round(seconds, 3)

    def lose_one(self) -> float:
        """Seconds until the partitions of a member that was killed are held again."""
        with self._victim() as victim:
            share = self._bench.partitions // (self._bench.members + 1)
            wait_until(lambda: self._counts()[_VICTIM] >= share, "the member to be killed did not get its share")
            victim.kill()
            began_at = time.monotonic()
            self.wait_fair()
        return round(time.monotonic() - began_at, 3)

    def close(self) -> None:
        closing = [threading.Thread(target=agent.close) for agent in self._agents]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def _agent(self, group: str, client_id: str, partitions: Sequence[Partition] | None = None) -> Agent:
        agent = Agent(self._spec, MemberOptions(group, client_id, self._bench.heartbeat_seconds))
        agent.want(self._partitions if partitions is None else partitions, {})
        return agent

    def _fair(self, agents: Sequence[Agent]) -> bool:
        """Whether everything is held, by each of them as much as by the others up to one."""
        return fair([len(agent.held()) for agent in agents], len(self._partitions))

    def _looks_fair(self, members: int) -> bool:
        """The same by the word of one member: to ask each of them all the time would slow them down."""
        held = self._counts()
        return len(held) == members and fair(held.values(), len(self._partitions))

    def _counts(self) -> Counter[str]:
        """How many partitions each member holds, as the first member sees it."""
        try:
            with self._agents[0].looking() as participant:
                claims = [claim for _, claim in participant.view.claims() if claim.held]
        except TransientError:
            return Counter()
        return Counter(claim.owner.client_id for claim in claims if claim.owner is not None)

    @contextmanager
    def _victim(self) -> Iterator[subprocess.Popen[bytes]]:
        bench = self._bench
        arguments = [self._spec.bootstrap, str(bench.partitions), str(bench.heartbeat_seconds)]
        process = subprocess.Popen([sys.executable, "-m", "penstock.bench.claims.compare", *arguments])
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _records(bootstrap: str) -> int:
    """How many records the coordination topic holds."""
    places = [TopicPartition(DEFAULT_TOPIC, place) for place in range(DEFAULT_PARTITIONS)]
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})) as consumer:
        return sum(consumer.get_watermark_offsets(each, timeout=30)[1] for each in places)


def _partitions(count: int) -> tuple[Partition, ...]:
    return tuple(Partition(_DATA_TOPIC, "benchTopicId", number) for number in range(count))


def main(bootstrap: str, partitions: str, heartbeat_seconds: str) -> None:
    agent = Agent(KafkaLogSpec(bootstrap), MemberOptions(GROUP, _VICTIM, float(heartbeat_seconds)))
    agent.want(_partitions(int(partitions)), {})
    agent.start()
    threading.Event().wait(WAIT_SECONDS_MAX)


if __name__ == "__main__":
    main(*sys.argv[1:])
