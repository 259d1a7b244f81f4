"""Closed windows in a topic: each once, whatever is switched on, off, lost or broken on the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.errors import TransientError, UserError
from penstock.publish.memory import MemoryCluster, MemoryOutput
from penstock.publish.output import OutputRecord, PublishPosition
from penstock.tables.rollup.publishing import publishing
from penstock.tables.rollup.publishing.outputs import OUTPUTS
from tests.pipes import CrashError
from tests.scenarios.rollup.oracle import check_last_published, check_published
from tests.scenarios.rollup.rollups import START, Rollup, point
from tests.scenarios.rollup.walk import Ownership, Sharing

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


def test_switched_on_later_everything_is_published_from_the_first_close_on(
    tmp_path: Path, cluster: MemoryCluster
) -> None:
    rollup = Rollup(tmp_path)
    fill(rollup, 0, 3)
    rollup.run()
    fill(rollup, 3, 6)
    rollup.run()
    assert (cluster.topics["rollups"], rollup.status()["closes"]) == ([], 2)
    rollup.more = PUBLISH
    finished(rollup, cluster)


def test_switched_off_for_a_while_nothing_is_left_out(tmp_path: Path, cluster: MemoryCluster) -> None:
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


def test_switched_off_inside_a_close_whose_rows_are_updated_every_window_is_still_published(
    tmp_path: Path, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of that close may come twice: which of them were out is not known any more."""
    monkeypatch.setattr(publishing, "RECORDS_PER_TRANSACTION", 2)
    rollup = Rollup(tmp_path, UPDATE + PUBLISH.replace("4", "1"))
    fill(rollup, 0, 3)

    def crash(step: str) -> None:
        if step == "publish_committed":
            raise CrashError(step)

    with pytest.raises(CrashError):
        rollup.run(reach=crash)
    assert len(cluster.topics["rollups"]) == 2
    rollup.more = UPDATE
    rollup.send(0, point(START + 30, 5.0, "a"))
    fill(rollup, 3, 5)
    rollup.run()
    rollup.more = UPDATE + PUBLISH.replace("4", "1")
    rollup.run()
    check_last_published(cluster.topics["rollups"], rollup.rows())


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
    assert [each for each in cluster.topics["rollups"] if each in before] == before, "none is there twice"
    cluster.positions.update(kept)
    finished(rollup, cluster)


def test_a_bucket_without_rows_needs_no_position(tmp_path: Path, cluster: MemoryCluster) -> None:
    rollup = Rollup(tmp_path, PUBLISH)
    for minute in range(3):
        rollup.send(0, point(START + 60 * minute, 1.0))
        rollup.send(1, point(START + 60 * minute, 1.0))
        rollup.clock = START + 60 * minute + 20
        rollup.run()
    assert len(cluster.positions) == 1, "one series is in one bucket"
    finished(rollup, cluster)


class Failing(MemoryOutput):
    """Cannot reach its broker."""

    def publish(self, records: Sequence[OutputRecord], position: PublishPosition) -> None:
        self.close()
        raise TransientError("the broker is away")


def test_a_bucket_that_fails_does_not_keep_the_others_waiting(
    tmp_path: Path, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollup = Rollup(tmp_path, PUBLISH)
    fill(rollup, 0, 3)
    with monkeypatch.context() as patched:
        patched.setitem(
            OUTPUTS,
            "kafka",
            lambda job, spec, bucket, environment: (Failing if bucket.number == 0 else MemoryOutput)(
                cluster, spec.topic, bucket, environment.reach
            ),
        )
        with pytest.raises(TransientError, match="away"):
            rollup.run()
    assert set(cluster.positions) == {"rollups/1", "rollups/2", "rollups/3"}
    finished(rollup, cluster)


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
