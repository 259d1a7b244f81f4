"""The limitations of kafka-delta-ingest (L and C numbers of its users' list), each with the right outcome here."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.lake.delta.opening import open_table
from penstock.lake.delta.vacuum import Dead
from penstock.lake.state import Totals
from penstock.tables.single.table import vacuum
from tests.support.kafka import Produce, Topics
from tests.support.pipes import CrashError, Pipe, crash_at, ids, once_at

BAD = '{"id": "not-a-number"}'


def test_l1_a_value_of_the_wrong_type_is_quarantined_and_its_neighbours_land(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, [*ids(range(10)), BAD, *ids(range(11, 21))])
    pipe.describe(name)
    pipe.run_to_end()
    assert pipe.column("offset") == [*range(10), *range(11, 21)]
    [(offset, error, value)] = pipe.quarantined("offset", "error", "value")
    assert (offset, value) == (10, BAD.encode())
    assert error.startswith("id: expected long")
    pipe.run_to_end()
    assert pipe.quarantined() == [(0, 10)]


def test_l2_bad_records_at_the_end_are_kept_once_after_any_number_of_restarts(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic(2)
    produce(name, [*ids(range(3)), BAD, BAD], partition=0)
    produce(name, [BAD, BAD, BAD], partition=1)
    pipe.describe(name)
    for _ in range(3):
        pipe.run_to_end()
    assert pipe.positions() == [5, 3]
    assert pipe.quarantined() == [(0, 3), (0, 4), (1, 0), (1, 1), (1, 2)]
    assert pipe.verified()


def test_l4_a_gap_that_opens_behind_the_end_of_a_bounded_run_is_recorded_up_to_it(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    """Retention passes the end that `run --once` saw first: the run takes the gap up to there and ends."""
    name = topic()
    produce(name, ids(range(10)))
    pipe.describe(name, on="gap: record")

    def retention() -> None:
        produce(name, ids(range(10, 30)))
        topic.cut(name, 20)

    pipe.run_to_end(once_at("planned", retention), retries=2)
    assert pipe.positions() == [10]
    assert pipe.totals() == Totals(gap=10)
    pipe.run_to_end()
    assert pipe.column("id") == list(range(20, 30))
    assert pipe.totals() == Totals(read=10, written=10, gap=20)


def test_l5_a_hundred_and_fifty_bad_records_are_one_commit(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    pipe.describe(name)
    pipe.run_to_end()
    version = pipe.version()
    produce(name, [BAD] * 150)
    pipe.run_to_end()
    assert pipe.version() == version + 1
    quarantine = DeltaTable(pipe.quarantine)
    assert [item["operation"] for item in quarantine.history()] == ["WRITE", "CREATE TABLE"]
    assert len(pipe.quarantined()) == 150


def test_l9_files_of_a_batch_that_was_never_committed_are_vacuumed(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(10)))
    pipe.describe(name)
    with pytest.raises(CrashError):
        pipe.run_to_end(crash_at("staged"))
    orphans = {path for path in Path(pipe.table).iterdir() if path.is_file()}
    assert orphans
    pipe.run_to_end()
    report = vacuum(open_table(pipe.job.table, pipe.job.name))
    assert {Path(pipe.table) / item.path for item in report.deleted} == orphans
    assert {file.reason for file in report.deleted} == {Dead.PASSED}
    assert not any(orphan.exists() for orphan in orphans)
    assert pipe.column("id") == list(range(10))


def test_l12_a_partition_that_is_read_to_its_end_has_no_lag(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic(2)
    produce(name, ids(range(7)), partition=0)
    pipe.describe(name)
    pipe.run_to_end()
    result = [(partition.position, partition.lag_records, partition.mirrored) for partition in pipe.status().partitions]
    assert result == [(7, 0, 7), (0, 0, None)]


def test_c6_two_topics_of_one_job_are_kept_apart(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    first, second = sorted([topic(), topic()])
    produce(first, ids(range(4)))
    produce(second, ids(range(100, 107)))
    pipe.describe(first, second, columns="topic: kafka.topic")
    pipe.run_to_end()
    produce(first, ids(range(4, 6)))
    pipe.run_to_end()
    assert pipe.positions() == [6, 7]
    rows = sorted(pipe.rows("topic", "id"))
    assert rows == [(first, number) for number in range(6)] + [(second, number) for number in range(100, 107)]
    assert pipe.verified()


@pytest.mark.parametrize(
    ("policy", "rows", "quarantined", "totals"),
    [
        ("filter", [1, 2], [], Totals(read=3, written=2, filtered=1)),
        ("row", [1, None, 2], [], Totals(read=3, written=3)),
        ("quarantine", [1, 2], [(0, 1)], Totals(read=3, written=2, quarantined=1)),
    ],
)
def test_a_tombstone_follows_its_policy_and_is_counted(
    pipe: Pipe,
    topic: Topics,
    produce: Produce,
    policy: str,
    rows: list[int | None],
    quarantined: list[tuple[int, int]],
    totals: Totals,
) -> None:
    name = topic()
    produce(name, ['{"id": 1}', None, '{"id": 2}'], key="k")
    pipe.describe(name, columns="key: kafka.key", on=f"tombstone: {policy}")
    pipe.run_to_end()
    assert pipe.column("id") == rows
    assert pipe.column("key") == [b"k"] * len(rows)
    assert (pipe.quarantined() if quarantined else []) == quarantined
    assert pipe.totals() == totals


@pytest.mark.parametrize("payload", ["gzip"])
def test_c7_compressed_records_are_unpacked_and_broken_ones_quarantined(
    pipe: Pipe, topic: Topics, produce: Produce, payload: str
) -> None:
    name = topic()
    plain = [text.encode() for text in ids(range(3))]
    packed = [gzip.compress(item) for item in plain]
    produce(name, [*packed, packed[0][:-4], plain[0]])
    pipe.describe(name, decode=f"{{format: json, payload: {payload}}}")
    pipe.run_to_end()
    assert pipe.column("id") == [0, 1, 2]
    assert pipe.quarantined("offset", "value") == [(3, packed[0][:-4]), (4, plain[0])]
