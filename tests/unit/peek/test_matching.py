"""Conditions over records of a topic: nulls, missing fields and values of other types are unknown, as in SQL."""

from __future__ import annotations

import json

import pytest

from penstock.job.conditions import read_condition
from penstock.peek.matching import matches
from penstock.peek.sample import Record

VALUE = {"status": 503, "share": 0.5, "ok": True, "name": "ann", "one": 1, "user": {"city": "Bern"}, "no": None}
RECORD = Record(2, 70, 1_772_359_200_000, b"k-1", json.dumps(VALUE).encode())
"""Its Kafka timestamp is 2026-03-01T10:00:00Z."""


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("status >= 500", True), ("status < 500", False), ("status = 503.0", True), ("share > status", False),
        ("status = '503'", False), ("not status = '503'", False), ("ok", True), ("not ok", False), ("ok = true", True),
        ("one = true", False), ("name in ('bob', 'ann')", True), ("name not in ('bob', 'ann')", False),
        ("user.city = 'Bern'", True), ("user is null", False), ("user.zip is null", True), ("no is null", True),
        ("missing = 1", False), ("not missing = 1", False), ("missing = 1 or ok", True), ("missing = 1 and ok", False),
        ("kafka.partition = 2 and kafka.offset >= 70 and kafka.topic = 'web'", True), ("kafka.key = 'k-1'", True),
        ("kafka.timestamp >= '2026-03-01T10:00:00Z'", True), ("kafka.timestamp > '2026-03-01T11:00:00+01:00'", False),
        ("kafka.timestamp < 'soon'", False), ("kafka.headers is null", True),
    ],
)  # fmt: skip
def test_condition_of_one_record(condition: str, expected: bool) -> None:
    assert matches(read_condition(condition), "web", RECORD) is expected


@pytest.mark.parametrize("value", [None, b"", b"text", b"[1]", b"\xff"])
def test_records_that_are_no_objects_have_no_fields(value: bytes | None) -> None:
    record = Record(0, 0, None, None, value)
    assert matches(read_condition("status is null and kafka.key is null"), "web", record)
    assert not matches(read_condition("status = 1"), "web", record)
