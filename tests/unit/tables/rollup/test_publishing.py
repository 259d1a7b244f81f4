"""Which process publishes which rows of a close, and that each of them goes out once (RULES U1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.environment import Environment
from penstock.errors import TransientError
from penstock.job.spec import ClaimsSpec
from penstock.logs.log import Partition
from penstock.publish.memory import MemoryCluster, MemoryOutput
from penstock.publish.spec import PublishSpec
from penstock.tables.kind import View
from penstock.tables.rollup.closing.windows_table import open_windows_table
from penstock.tables.rollup.publishing import rows
from penstock.tables.rollup.publishing.publishing import Publishing
from penstock.tables.rollup.publishing.rows import CloseRows, Page, pages_of, rows_of
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

    def process(self) -> Publishing:
        lake = self.lake
        environment = Environment(now=lake.clock.now, listener=lake.heard)
        return Publishing(
            replace(lake.job, claims=ClaimsSpec()),
            self.spec,
            open_windows_table(lake.job, environment),
            lake.log,
            environment,
            lambda bucket: MemoryOutput(self.cluster, TOPIC, bucket),
        )

    def close(self, at_ms: int) -> None:
        """A point of each host, and the close of its minute."""
        self.lake.land([Point(host, at_ms, 1.0) for host in HOSTS], 0)
        self.lake.land([Point("clock", at_ms + 60_000, 0.0)], 0)
        self.lake.land([Point("clock", at_ms + 60_000, 0.0)], 1)
        self.lake.work()

    def view(self, mine: Iterable[Partition], **stated: Any) -> View:
        return self.lake.view(mine=tuple(mine), **stated)

    def work(self, process: Publishing, view: View) -> None:
        for _ in process.chores(view):
            process.perform()

    def sent(self) -> Counter[bytes]:
        return Counter(each.value for each in self.cluster.topics[TOPIC])


@pytest.fixture
def publishers(tmp_path: Path) -> Publishers:
    return Publishers(tmp_path)


def test_a_process_that_leads_nothing_sees_the_closes_of_others_and_publishes_its_buckets(
    publishers: Publishers,
) -> None:
    processes = [publishers.process(), publishers.process()]
    for number, each in enumerate(processes):
        publishers.work(each, publishers.view([partition(number)]))
    publishers.close(0)
    publishers.lake.clock.at += 10
    for number, each in enumerate(processes):
        publishers.work(each, publishers.view([partition(number)]))
    sent = publishers.sent()
    assert len(sent) == len(publishers.lake.rows()) and set(sent.values()) == {1}


def test_a_new_process_does_not_look_again_for_rows_of_closes_that_are_out(
    publishers: Publishers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket without rows has no record in the topic of positions: only the table knows that it is done."""
    asked: list[int] = []

    def counted(*arguments: Any) -> Any:
        asked.append(arguments[1])
        return rows_of(*arguments)

    monkeypatch.setattr("penstock.tables.rollup.publishing.publishing.rows_of", counted)
    publishers.spec = replace(publishers.spec, buckets=64)
    for minute in range(3):
        publishers.close(minute * 60_000)
        publishers.work(publishers.process(), publishers.view(publishers.lake.log.partitions()))
    assert Counter(asked) == {1: 64, 2: 64, 3: 64}
    assert set(publishers.sent().values()) == {1}


def test_hash_buckets_share_a_page_up_to_its_limit_and_are_never_divided() -> None:
    assert pages_of([(1, 0), (3, 2), (5, 1), (7, 0), (9, 9), (11, 1), (13, 0)], 3) == (
        Page(0, 3, (3, 5, 7)),
        Page(3, 12, (9,)),
        Page(12, 13, (11, 13)),
    )
    assert pages_of([(0, 0), (1, 0)], 3) == ()


@pytest.mark.parametrize("rows_max", [1, 4])
def test_one_page_of_a_close_is_in_memory_and_rows_have_the_same_numbers_in_pages_of_any_size(
    publishers: Publishers, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    publishers.close(0)
    windows = open_windows_table(publishers.lake.job, Environment())
    whole = rows_of(windows, 1, 0, 1)
    wanted = whole.part(0, 1000).to_pylist()
    held: list[int] = []
    load = rows._page_rows

    def loaded(*arguments: Any) -> Any:
        held.append((page := load(*arguments)).num_rows)
        return page

    monkeypatch.setattr(rows, "PAGE_ROWS_MAX", rows_max)
    monkeypatch.setattr(rows, "_page_rows", loaded)
    paged = rows_of(windows, 1, 0, 1)
    assert paged.count == whole.count == len(wanted) >= len(HOSTS)
    found: list[dict[str, Any]] = []
    while part := paged.part(len(found), 1000).to_pylist():
        found += part
    assert found == wanted
    assert len(held) == len(paged.pages) > 1 and sum(held) == len(wanted), "each page is read once"
    assert max(held) <= max(rows_max, *Counter(each["bucket"] for each in wanted).values())
    assert rows_of(windows, 1, 0, 1).part(7, 1).to_pylist() == wanted[7:8], "a process that starts in the middle"
    counted = rows_of(windows, 1, 0, 1)
    changed = CloseRows(windows, 1, tuple(replace(each, end=each.end + 1) for each in counted.pages[-1:]))
    with pytest.raises(TransientError, match="were changed"):
        changed.part(changed.count - 1, 1)


def test_a_bucket_that_a_process_without_its_claim_took_comes_back_to_its_owner(publishers: Publishers) -> None:
    """The zombie was stopped before it opened the bucket, and goes on after its successor has it open."""
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
