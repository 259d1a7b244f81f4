"""Records that cannot be rows: each is in quarantine whole with its reason, and all other records land."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import UserError
from penstock.watch.status import status
from penstock.watch.verify import verify
from tests.cases.bad_input import GOOD, job_of, rows
from tests.support.kafka import Produce, Topics
from tests.support.quarantine_url import quarantine_of
from tests.support.quarantined import run_once


def test_nan_and_infinities_in_a_column_make_a_record_bad(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic()
    produce(name, ['{"share": NaN}', '{"share": Infinity}', '{"share": -Infinity}', '{"user": {"age": NaN}}'])
    job = job_of(tmp_path, bootstrap, name)
    run_once(job, spark)
    assert rows(job.table.path) == []
    assert [row["offset"] for row in rows(quarantine_of(job))] == [0, 1, 2, 3]
    assert verify(job).ok


@pytest.mark.parametrize(
    ("policy", "landed", "quarantined", "filtered"),
    [("filter", [0, 3], [2], 1), ("row", [0, 1, 3], [2], 0), ("quarantine", [0, 3], [1, 2], 0)],
)
def test_tombstones_follow_their_policy_and_an_empty_value_is_not_a_tombstone(
    policy: str,
    landed: list[int],
    quarantined: list[int],
    filtered: int,
    tmp_path: Path,
    bootstrap: str,
    topic: Topics,
    produce: Produce,
    spark: SparkSession,
) -> None:
    name = topic()
    produce(name, [GOOD, None, b"", GOOD], key="k")
    job = job_of(tmp_path, bootstrap, name, on=f"tombstone: {policy}")
    run_once(job, spark)
    assert [row["offset"] for row in rows(job.table.path)] == landed
    assert [row["offset"] for row in rows(quarantine_of(job))] == quarantined
    assert verify(job).ok
    assert status(job).partitions[0].totals.filtered == filtered


def test_every_type_of_column_comes_back_as_it_was_sent(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    schema = (
        'small: byte, price: "decimal(20,4)", at: timestamp, day: date, blob: binary, ok: boolean, tags: [string], '
        'points: [{x: double, y: float}], user: {name: string, visits: {first: date}}, counts: "map<string,long>"'
    )
    name = topic()
    sent = {
        "small": -128,
        "price": 1234567890123456.7891,
        "at": "2026-02-28T23:30:00.123456-02:00",
        "day": "2024-02-29",
        "blob": "AP8=",
        "ok": False,
        "tags": ["a", None, ""],
        "points": [{"x": 0.1, "y": 0.5}, {"x": None}],
        "user": {"name": "Ünal 🐟", "visits": {"first": "0001-01-01"}},
        "counts": {"a b": 1, "": None},
    }
    text = json.dumps(sent).replace("1234567890123456.8", "1234567890123456.7891")
    produce(name, [text, "{}"])
    job = job_of(tmp_path, bootstrap, name, schema)
    run_once(job, spark)
    [full, empty] = rows(job.table.path)
    assert full == {
        "small": -128,
        "price": Decimal("1234567890123456.7891"),
        "at": datetime(2026, 3, 1, 1, 30, 0, 123456, tzinfo=UTC),
        "day": date(2024, 2, 29),
        "blob": b"\x00\xff",
        "ok": False,
        "tags": ["a", None, ""],
        "points": [{"x": 0.1, "y": 0.5}, {"x": None, "y": None}],
        "user": {"name": "Ünal 🐟", "visits": {"first": date(1, 1, 1)}},
        "counts": {"a b": 1, "": None},
        "partition": 0,
        "offset": 0,
    }
    # Polars shows a struct that is null as one whose fields are.
    assert [item for name, item in empty.items() if name != "user"] == [None] * 9 + [0, 1]
    assert verify(job).ok


def test_bad_record_fail_stops_at_the_first_and_names_its_place_and_nothing_is_committed(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic()
    produce(name, [GOOD, b'{"user": {"age": true}}', GOOD])
    job = job_of(tmp_path, bootstrap, name, on="bad_record: fail")
    with pytest.raises(UserError) as raised:
        run_once(job, spark)
    assert f"{name}/0 offset 1: user.age: expected int, found boolean" in raised.value.primary
    assert rows(job.table.path) == []
    run_once(job_of(tmp_path, bootstrap, name), spark)
    assert [row["offset"] for row in rows(job.table.path)] == [0, 2]
    assert verify(job).ok
