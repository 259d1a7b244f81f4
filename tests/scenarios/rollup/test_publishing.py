"""Closed windows in a topic: each once, also after settings change, or a topic or process is lost."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.engine.loop import Loop, Retries
from penstock.errors import TransientError, UserError
from penstock.events import NullListener
from penstock.publish.output import OutputRecord, PublishPosition
from penstock.tables.rollup import pages, publishing
from penstock.tables.rollup.publishing import OUTPUTS
from tests.scenarios.rollup.oracle import check_last_published, check_published
from tests.scenarios.rollup.rollups import START, Rollup, point
from tests.scenarios.rollup.walk import Ownership, Sharing
from tests.support.memory_output import MemoryCluster, MemoryOutput
from tests.support.pipes import CrashError

PUBLISH = "publish: {topic: rollups, format: json, buckets: 4}\n"
UPDATE = "late: update\nupdate_grace: 30d\n"
HOSTS = "abcdefgh"


def fill(rollup: Rollup, first: int, end: int) -> None:
    """A point of every host in each of these minutes, in both partitions."""
    for minute in range(first, end):
        for number in (0, 1):
            rollup.send(number, *(point(START + 60 * minute + 30, minute, host) for host in HOSTS))
    rollup.clock = max(rollup.clock, START + 60 * end)


def finished(rollup: Rollup, cluster: MemoryCluster) -> None:
    """All windows close, are published, and agree with the table."""
    rollup.run()
    rollup.clock += 7200
    rollup.run()
    check_published(cluster.topics["rollups"], rollup.rows())
    assert rollup.rows()


def test_publishing_switched_on_later_starts_with_the_first_close(tmp_path: Path, cluster: MemoryCluster) -> None:
    rollup = Rollup(tmp_path)
    fill(rollup, 0, 3)
    rollup.run()
    fill(rollup, 3, 6)
    rollup.run()
    assert (cluster.topics["rollups"], rollup.status()["closes"]) == ([], 2)
    rollup.more = PUBLISH
    finished(rollup, cluster)


def test_publishing_switched_off_for_a_while_misses_no_row(tmp_path: Path, cluster: MemoryCluster) -> None:
    rollup = Rollup(tmp_path, PUBLISH)
    fill(rollup, 0, 3)
    rollup.run()
    published = len(cluster.topics["rollups"])
    rollup.more = ""
    fill(rollup, 3, 6)
    rollup.run()
    assert len(cluster.topics["rollups"]) == published > 0
    rollup.more = PUBLISH
    finished(rollup, cluster)


def test_publishing_interrupted_inside_a_close_with_updates_publishes_each_row_once(
    tmp_path: Path, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update removes a published row: the others of its close get other numbers, and keep their keys."""
    monkeypatch.setattr(publishing, "RECORDS_PER_TRANSACTION", 2)
    rollup = Rollup(tmp_path, UPDATE + PUBLISH.replace("4", "1"))
    fill(rollup, 0, 3)

    def crash(step: str) -> None:
        if step == "publish_committed":
            raise CrashError(step)

    with pytest.raises(CrashError):
        rollup.run(at_step=crash)
    assert len(cluster.topics["rollups"]) == 2
    rollup.more = UPDATE
    rollup.send(0, point(START + 30, 5.0, "a"))
    fill(rollup, 3, 5)
    rollup.run()
    rollup.more = UPDATE + PUBLISH.replace("4", "1")
    rollup.run()
    check_published(cluster.topics["rollups"], rollup.rows())


@pytest.mark.parametrize("late", ["", UPDATE], ids=["drop", "update"])
def test_windows_close_while_the_topic_is_unavailable_and_are_published_once_afterwards(
    tmp_path: Path, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """The first publisher stops inside a close; rows of it, before and after the position, are corrected meanwhile."""
    monkeypatch.setattr(publishing, "RECORDS_PER_TRANSACTION", 3)
    rollup = Rollup(tmp_path, late + PUBLISH.replace("4", "1"))
    fill(rollup, 0, 3)

    def crash(step: str) -> None:
        if step == "publish_committed":
            raise CrashError(step)

    with pytest.raises(CrashError):
        rollup.run(at_step=crash)
    with away(cluster, monkeypatch):
        rounds = rollup.open()
        for first in (3, 6, 9):
            rollup.send(0, *(point(START + 30, 5.0, host) for host in "afh"))
            fill(rollup, first, first + 3)
            for _ in range(20):
                rounds.round()
                rollup.clock += 1
    assert len(cluster.topics["rollups"]) == 3
    assert rollup.status()["closes"] >= 3
    assert any(row["revision"] for row in rollup.rows().values()) == bool(late)
    finished(rollup, cluster)


def test_a_close_does_not_wait_for_unpublished_rows_of_earlier_closes(
    tmp_path: Path, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollup = Rollup(tmp_path)
    for first in (0, 3):
        fill(rollup, first, first + 3)
        rollup.run()
    rollup.more = PUBLISH
    monkeypatch.setattr(publishing, "RECORDS_PER_TRANSACTION", 1)
    monkeypatch.setattr(publishing, "ROWS_PER_TURN_MAX", 1)
    fill(rollup, 6, 9)
    rounds = rollup.open()
    turns = 0
    while rollup.status()["closes"] == 2:
        rounds.round(flush_now=True)
        turns += 1
    assert turns < 10 < len(HOSTS) * 5, "of rows in the first closes"
    assert rollup.status()["published"] == 0
    rollup.run(rounds)
    finished(rollup, cluster)


def test_another_number_of_buckets_is_refused_before_anything_is_published(
    tmp_path: Path, cluster: MemoryCluster
) -> None:
    rollup = Rollup(tmp_path, PUBLISH)
    fill(rollup, 0, 3)
    rollup.run()
    before = list(cluster.topics["rollups"])
    for buckets in ("3", "8"):
        rollup.more = PUBLISH.replace("4", buckets)
        with pytest.raises(UserError, match="4 buckets"):
            rollup.run()
    assert cluster.topics["rollups"] == before
    rollup.more = PUBLISH
    finished(rollup, cluster)


def test_lost_positions_are_an_error_and_nothing_is_published_again(tmp_path: Path, cluster: MemoryCluster) -> None:
    rollup = Rollup(tmp_path, PUBLISH)
    fill(rollup, 0, 3)
    rollup.run()
    kept, before = dict(cluster.positions), list(cluster.topics["rollups"])
    cluster.positions.clear()
    fill(rollup, 3, 6)
    with pytest.raises(UserError, match="position"):
        rollup.run()
    assert [topic for topic in cluster.topics["rollups"] if topic in before] == before, "none is there twice"
    cluster.positions.update(kept)
    finished(rollup, cluster)


def test_a_position_restored_by_hand_repeats_at_most_rows_of_its_close(
    tmp_path: Path, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bucket was in the middle of the second close, the first is out. The error states the record to write."""
    rollup = Rollup(tmp_path, PUBLISH.replace("4", "1"))
    fill(rollup, 0, 3)
    rollup.run()
    fill(rollup, 3, 6)
    with monkeypatch.context() as patched:
        patched.setattr(publishing, "RECORDS_PER_TRANSACTION", 3)
        patched.setattr(publishing, "ROWS_PER_TURN_MAX", 3)
        rounds = rollup.open()
        while not json.loads(cluster.positions["rollups/0"])["after"]:
            rounds.round(flush_now=True)
    sent = len(cluster.topics["rollups"])
    cluster.positions.clear()
    with pytest.raises(UserError, match=r"rows of close 2 may") as raised:
        rollup.run()
    record = re.search(r"produce (\{.*\}) with the key rollups/0 to its partition 0", raised.value.hint or "")
    assert record is not None, raised.value.hint
    cluster.positions["rollups/0"] = record[1].encode()
    rollup.run()
    closes = [json.loads(record.value)["close"] for record in cluster.topics["rollups"]]
    assert closes[:sent][-3:] == [2, 2, 2] and set(closes[sent:]) == {2}
    check_last_published(cluster.topics["rollups"], rollup.rows())
    fill(rollup, 6, 9)
    rollup.run()
    later = {key: row for key, row in rollup.rows().items() if row["close"] > 1}
    check_published(cluster.topics["rollups"][sent:], later)


def test_the_position_of_a_bucket_without_rows_follows_every_close(tmp_path: Path, cluster: MemoryCluster) -> None:
    rollup = Rollup(tmp_path, PUBLISH)
    for minute in range(3):
        rollup.send(0, point(START + 60 * minute, 1.0))
        rollup.send(1, point(START + 60 * minute, 1.0))
        rollup.clock = START + 60 * minute + 20
        rollup.run()
    closes = rollup.status()["closes"]
    assert [json.loads(record)["close"] for record in cluster.positions.values()] == [closes + 1] * 4
    assert len({json.loads(record.value)["bucket"] % 4 for record in cluster.topics["rollups"]}) == 1
    finished(rollup, cluster)


class Failing(MemoryOutput):
    """Cannot reach its broker."""

    def publish(self, records: Sequence[OutputRecord], position: PublishPosition) -> None:
        self.close()
        raise TransientError("the broker is away")


@contextmanager
def away(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, *buckets: int) -> Iterator[None]:
    """Some buckets cannot be published, or none can."""
    with monkeypatch.context() as patched:
        patched.setitem(
            OUTPUTS,
            "kafka",
            lambda job, spec, bucket, environment: (
                Failing if bucket.number in buckets or not buckets else MemoryOutput
            )(cluster, spec.topic, bucket, environment.at_step),
        )
        yield


def test_a_bucket_that_fails_does_not_keep_the_others_waiting(
    tmp_path: Path, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_ROWS_MAX", 5)
    rollup = Rollup(tmp_path, PUBLISH)
    with away(cluster, monkeypatch, 0):
        rounds = rollup.open()
        for first in (0, 3):
            fill(rollup, first, first + 3)
            for _ in range(2):
                with pytest.raises(TransientError, match="away"):
                    rollup.run(rounds)
    others = {key: row for key, row in rollup.rows().items() if row["bucket"] % 4}
    assert {row["close"] for row in others.values()} == {1, 2}
    check_published(cluster.topics["rollups"], others)
    finished(rollup, cluster)


def test_a_bounded_run_without_its_topic_reads_and_closes_everything_and_then_fails(
    tmp_path: Path, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollup = Rollup(tmp_path, PUBLISH)
    fill(rollup, 0, 3)
    rng = random.Random(0)
    with away(cluster, monkeypatch):
        loop = Loop(rollup.open, True, Hurried(), Retries(3, rng), NullListener())
        with pytest.raises(TransientError, match="away"):
            loop.run()
    assert sum(rollup.counts("1m").values()) == 2 * 2 * len(HOSTS), "the last minute is not over"
    finished(rollup, cluster)


class Hurried(threading.Event):
    """A stop that is never requested, and pauses that take no time."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


def test_a_process_that_does_not_lead_publishes_what_another_one_closes(tmp_path: Path, cluster: MemoryCluster) -> None:
    rollup = Rollup(tmp_path, PUBLISH)
    ownership = Ownership({0: (0, 1), 1: (1, 1)})
    leading, other = (rollup.open(Sharing(ownership, process)) for process in (0, 1))
    for first in (0, 3, 6):
        fill(rollup, first, first + 3)
        for _ in range(3):
            rollup.run(other)
            rollup.run(leading)
    assert rollup.status()["closes"] == 3
    rollup.run(other)
    check_published(cluster.topics["rollups"], rollup.rows())
