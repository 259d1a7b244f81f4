"""Which process publishes which rows of a close; each row is published once (RULES U1)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.environment import Environment
from penstock.errors import TransientError
from penstock.events import Retrying
from penstock.job.spec import ClaimsSpec
from penstock.lake.delta.files import active_files
from penstock.lake.delta.table import DeltaLog
from penstock.logs.log import Partition
from penstock.publish.output import PublishPosition
from penstock.publish.spec import PublishSpec
from penstock.tables.kind import CompactRequest, View
from penstock.tables.rollup import pages, publishing
from penstock.tables.rollup.kind import RollupKind
from penstock.tables.rollup.publishing import Publishing
from penstock.tables.rollup.table import open_windows_table
from tests.support.memory_output import MemoryCluster, MemoryOutput
from tests.support.watched_storage import WatchedStorage
from tests.unit.tables.rollup.rollup_lake import Point, RollupLake, partition

HOSTS = [f"host-{number}" for number in range(12)]
TOPIC = "rolled-up"


class Publishers:
    """Processes that publish the closed windows of one lake to a cluster in memory."""

    def __init__(self, folder: Path, buckets: int = 2, partitions: int = 2) -> None:
        self.lake = RollupLake(folder, partitions=partitions)
        self.cluster = MemoryCluster()
        self.cluster.create(TOPIC)
        self.spec = PublishSpec(TOPIC, format="json", buckets=buckets)

    def process(self, output: type[MemoryOutput] = MemoryOutput) -> Publishing:
        lake = self.lake
        environment = Environment(now=lake.clock.now, listener=lake.recorded)
        return Publishing(
            replace(lake.job, claims=ClaimsSpec()),
            self.spec,
            open_windows_table(lake.job, environment),
            lake.log,
            lambda job, spec, bucket, environment: output(self.cluster, TOPIC, bucket),
        )

    def close(self, at_ms: int) -> None:
        """A point of each host, and the close of its minute."""
        self.lake.land([Point(host, at_ms, 1.0) for host in HOSTS], 0)
        self.lake.land([Point("clock", at_ms + 60_000, 0.0)], 0)
        self.lake.land([Point("clock", at_ms + 60_000, 0.0)], 1)
        self.lake.work()

    def view(self, own: Iterable[Partition], **stated: Any) -> View:
        return self.lake.view(own=tuple(own), **stated)

    def work(self, process: Publishing, view: View) -> None:
        for _ in process.chores(view):
            process.perform()

    def sent(self) -> Counter[bytes]:
        return Counter(topic.value for topic in self.cluster.topics[TOPIC])


@pytest.fixture
def publishers(tmp_path: Path) -> Publishers:
    return Publishers(tmp_path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data files that the driver has read; tasks of a close open theirs by themselves."""
    paths: list[str] = []

    def watch(act: str, path: str) -> None:
        if act in ("read", "open_reader") and not path.startswith("_delta_log"):
            paths.append(path)

    storage = DeltaLog.storage
    monkeypatch.setattr(DeltaLog, "storage", lambda table: WatchedStorage(storage(table), watch))
    return paths


def test_a_process_that_leads_nothing_sees_the_closes_of_others_and_publishes_its_buckets(
    publishers: Publishers,
) -> None:
    processes = [publishers.process(), publishers.process()]
    for number, process in enumerate(processes):
        publishers.work(process, publishers.view([partition(number)]))
    publishers.close(0)
    publishers.lake.clock.at += 10
    for number, item in enumerate(processes):
        publishers.work(item, publishers.view([partition(number)]))
    sent = publishers.sent()
    assert len(sent) == len(publishers.lake.rows()) and set(sent.values()) == {1}


def test_closes_that_are_published_are_not_read_again_by_a_new_process(
    publishers: Publishers, reads: list[str]
) -> None:
    """The position of every bucket follows each close, also where the bucket has no rows."""
    publishers.spec = replace(publishers.spec, buckets=64)
    for minute in range(3):
        publishers.close(minute * 60_000)
        publishers.work(publishers.process(), publishers.view(publishers.lake.log.partitions()))
    assert set(Counter(reads).values()) == {1}, "all buckets share what is read"
    assert set(publishers.sent().values()) == {1}


def compacted(publishers: Publishers, closes: int) -> list[str]:
    """A few files with the rows of many closes, none of them published."""
    for minute in range(closes):
        publishers.close(minute * 60_000)
    RollupKind().compact(publishers.lake.job, CompactRequest(), publishers.lake.environment, None)
    publishers.lake.windows.refresh()
    files = active_files(publishers.lake.windows.handle, ("close",))
    assert [file.spans["close"] for file in files] == [(1, closes)]
    return [file.path for file in files]


def test_publishing_a_compacted_table_reads_its_files_once_for_all_closes_and_buckets(
    publishers: Publishers, reads: list[str]
) -> None:
    files = compacted(publishers, 12)
    reads.clear()
    publishers.work(publishers.process(), publishers.view(publishers.lake.log.partitions()))
    assert len(publishers.sent()) == len(publishers.lake.rows()) and set(publishers.sent().values()) == {1}
    assert reads == files


def test_a_table_larger_than_a_page_is_read_once_for_each_page(
    publishers: Publishers, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closes, rows_of_close = 12, len(HOSTS)
    monkeypatch.setattr(pages, "PAGE_ROWS_MAX", 4 * (rows_of_close + 1))
    files = compacted(publishers, closes)
    reads.clear()
    publishers.work(publishers.process(), publishers.view(publishers.lake.log.partitions()))
    assert len(publishers.sent()) == len(publishers.lake.rows()) and set(publishers.sent().values()) == {1}
    assert reads == files * (closes // 4)


def test_files_of_closes_that_are_beyond_a_page_are_not_read_for_it(
    publishers: Publishers, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closes, rows_of_close = 6, len(HOSTS)
    monkeypatch.setattr(pages, "PAGE_ROWS_MAX", 2 * (rows_of_close + 1))
    for minute in range(closes):
        publishers.close(minute * 60_000)
    reads.clear()
    publishers.work(publishers.process(), publishers.view(publishers.lake.log.partitions()))
    assert len(publishers.sent()) == len(publishers.lake.rows()) and set(publishers.sent().values()) == {1}
    assert set(Counter(reads).values()) == {1}, "each file has the rows of one close"


@pytest.mark.parametrize("page_rows", [1, 4, 20])
@pytest.mark.parametrize("part_rows", [1, 3, 1000])
def test_rows_are_published_in_the_same_order_in_pages_and_transactions_of_any_size(
    publishers: Publishers, monkeypatch: pytest.MonkeyPatch, page_rows: int, part_rows: int
) -> None:
    for minute in range(2):
        publishers.close(minute * 60_000)
    names = ("close", "bucket", "series", "interval", "window_start")
    expected = sorted(tuple(row[name] for name in names) for row in publishers.lake.rows())
    monkeypatch.setattr(pages, "PAGE_ROWS_MAX", page_rows)
    monkeypatch.setattr(publishing, "RECORDS_PER_TRANSACTION", part_rows)
    # Every turn is another process, which continues from the positions in the topic.
    monkeypatch.setattr(publishing, "ROWS_PER_TURN_MAX", 2)
    ours = publishers.lake.log.partitions()
    while (process := publishers.process()).chores(publishers.view(ours)):
        process.perform()
    published = [json.loads(record.value) for record in publishers.cluster.topics[TOPIC]]
    for number in range(publishers.spec.buckets):
        keys = [(row["close"], row["bucket"], row["series"]) for row in published if row["bucket"] % 2 == number]
        assert keys == [key[:3] for key in expected if key[1] % 2 == number]


def test_a_bucket_taken_without_a_claim_returns_to_its_owner(publishers: Publishers) -> None:
    """The zombie was stopped before it opened the bucket, and continues after its successor has it open."""
    zombie, owner = publishers.process(), publishers.process()
    ours = publishers.lake.log.partitions()
    publishers.close(0)
    assert zombie.chores(publishers.view(ours))
    publishers.work(owner, publishers.view(ours))
    publishers.close(60_000)
    zombie.chores(publishers.view(ours, flush_now=True))
    zombie.perform()
    zombie.chores(publishers.view([]))
    publishers.close(120_000)
    for _ in range(2):
        publishers.work(owner, publishers.view(ours, flush_now=True))
        publishers.lake.clock.at += 31
    sent = publishers.sent()
    assert len(sent) == len(publishers.lake.rows()) and set(sent.values()) == {1}


class Away(MemoryOutput):
    """Cannot reach its broker."""

    attempts = 0

    def open(self) -> PublishPosition | None:
        Away.attempts += 1
        raise TransientError("the broker is away")


def test_an_unavailable_cluster_is_retried_once_a_turn_with_growing_pauses(
    publishers: Publishers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Away, "attempts", 0)
    publishers.spec = replace(publishers.spec, buckets=64)
    publishers.close(0)
    process, ours, clock = publishers.process(Away), publishers.lake.log.partitions(), publishers.lake.clock
    tried_at: list[float] = []
    while clock.at < 600:
        if process.chores(publishers.view(ours)):
            before = Away.attempts
            process.perform()
            assert Away.attempts == before + 1, "buckets wait together, not one after the other"
            tried_at.append(clock.at)
        clock.at += 0.25
    pauses = [later - earlier for earlier, later in pairwise(tried_at)]
    assert pauses[0] <= 1.25 and max(pauses) <= 60.25 and min(pauses[7:]) >= 30
    retries = [event for event in publishers.lake.recorded.events if isinstance(event, Retrying)]
    assert [event.reason for event in retries] == ["the broker is away"] * len(tried_at)
    assert process.lags(), "the rows still wait"
    for _ in range(2_000):
        clock.at += 61
        assert process.chores(publishers.view(ours)), "however long it is away"
        process.perform()


def test_the_last_work_of_a_bounded_run_is_retried_without_pauses_and_fails(publishers: Publishers) -> None:
    publishers.close(0)
    process, ours = publishers.process(Away), publishers.lake.log.partitions()
    for _ in range(3):
        assert process.chores(publishers.view(ours, flush_now=True, idle=True)), "the caller makes the pauses"
        with pytest.raises(TransientError, match="away"):
            process.perform()
    assert process.chores(publishers.view(ours, flush_now=True)) == [], "batches have precedence"
