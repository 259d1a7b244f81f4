"""1 to 3 to 1 processes over 12 partitions while records flow, with everything that can happen to them meanwhile."""

from __future__ import annotations

import signal
import threading
from collections import defaultdict
from pathlib import Path

from penstock.embedded.broker import Cluster
from penstock.lake.delta.opening import open_table
from penstock.tables.registry import load_job
from tests.support.jobs import KILLED, assert_every_record_once, holds, numbered, shared_job
from tests.support.kafka import Produce, Topics
from tests.support.processes import PenstockProcess, command_json, penstock
from tests.support.waiting import wait_until

RECORDS = 100_000
CHUNK_RECORDS = 1_000
HEARTBEAT_SECONDS = 4
ALL_SECONDS_MAX = 300.0


class Flow:
    """Records that flow in a thread of their own, as many as the test lets through."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.places: list[tuple[int, int]] = []
        self._produce = Produce(bootstrap)
        self._topic = topic
        self._allowed = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def more(self, records: int) -> None:
        self._allowed.release(records // CHUNK_RECORDS)

    def caught_up(self, records: int) -> bool:
        """Whether so many are acknowledged: a broker is hurt only between two chunks."""
        return len(self.places) == records

    def _run(self) -> None:
        for start in range(0, RECORDS, CHUNK_RECORDS):
            self._allowed.acquire()
            self.places += self._produce(self._topic, numbered(range(start, start + CHUNK_RECORDS)))


def won_after(process: PenstockProcess, count: int) -> None:
    """Wait until the process has won so many further claims."""
    for _ in range(count):
        process.wait_for("claim won")


def tokens_by_partition(job: Path) -> dict[int, list[int]]:
    """The tokens of the committed slices of each partition, oldest first."""
    spec = load_job(job)
    result: dict[int, list[int]] = defaultdict(list)
    for record in reversed(open_table(spec.table, spec.name).handle.history()):
        ours = record.get("penstock")
        for piece in ours.get("slices", []) if isinstance(ours, dict) else []:
            result[piece["partition"]].append(piece["token"])
    return result


def test_processes_come_go_die_sleep_and_lose_the_broker_and_every_record_is_there_once(tmp_path: Path) -> None:
    with Cluster.start(tmp_path / "kafka") as cluster:
        topics = Topics(cluster.bootstrap)
        name = topics(partitions=12)
        flow = Flow(cluster.bootstrap, name)
        first, second, third = (
            shared_job(tmp_path, cluster.bootstrap, name, client_id=text, heartbeat=f"{HEARTBEAT_SECONDS}s")
            for text in ("first", "second", "third")
        )
        with penstock("run", str(first), "--json") as a:
            won_after(a, 12)
            flow.more(20_000)
            a.wait_for("batch committed")
            with penstock("run", str(second), "--json") as b, penstock("run", str(third), "--json") as c:
                for item in (b, c):
                    won_after(item, 4)
                flow.more(20_000)
                for process in (b, c):
                    process.wait_for("batch committed")

                b.send(signal.SIGKILL)
                assert b.exit_code() == KILLED
                flow.more(20_000)
                for process in (a, c):
                    won_after(process, 2)

                c.send(signal.SIGSTOP)
                won_after(a, 6)
                c.send(signal.SIGCONT)
                c.wait_for("claim lost")
                c.wait_for("claim won")

                wait_until(lambda: flow.caught_up(60_000), ALL_SECONDS_MAX)
                cluster.kill()
                cluster.restart()
                flow.more(20_000)
                wait_until(lambda: flow.caught_up(80_000), ALL_SECONDS_MAX)

                topics.delete(f"{name}_claims")
                for process in (a, c):
                    process.wait_for("group joined")
                flow.more(20_000)
                c.wait_for("batch committed")
                c.send(signal.SIGTERM)
                assert c.exit_code() == 0, c.last_words
            wait_until(lambda: holds(tmp_path / "table") == RECORDS, ALL_SECONDS_MAX, lambda: a.last_words)
            a.send(signal.SIGTERM)
            assert a.exit_code() == 0, a.last_words
        assert_every_record_once(tmp_path / "table", flow.places)
        assert command_json("verify", str(first))["ok"]
        alerts = command_json("status", str(first))[0]["alerts"]
        behind = [alert for alert in alerts if alert["kind"] == "mirror_lagging"]
        assert not behind, "\n".join(str(event) for event in a.events_read if "mirror" in event["event"])
        # A token never falls: a process that lost a claim did not write after its successor.
        assert all(tokens == sorted(tokens) for tokens in tokens_by_partition(first).values())
