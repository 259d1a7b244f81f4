"""Records that cannot be rows: each is in quarantine whole with its reason, and all other records land."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.watch.verify import Sample, verify
from tests.cases.bad_input import GOOD, SCHEMA, job_of, rows
from tests.support.kafka import Produce, Topics
from tests.support.quarantine_url import quarantine_of
from tests.support.quarantined import run_once

TEN_MEGABYTES = 10_000_000

BAD = [
    (b'{"text": "\xff\xfe"}', "value is not UTF-8"),
    (b'{"id": 1, "text": "a', "not JSON: input data was truncated"),
    (b'{"id": ' + b"[" * 200_000, "nested deeper than 500"),
    (b'{"id": 1, "deep": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested deeper than 500"),
    (b'{"id": 1, "id": 2}', "id: given twice"),
    (b'{"id": NaN}', "id: expected long, found number out of range"),
    (b'{"id": 9223372036854775808}', "id: expected long, found number out of range"),
    (b'{"id": -9223372036854775809}', "id: expected long, found number out of range"),
    (b"", "value is empty"),
    (b"   ", "not JSON: input data was truncated"),
    (b"[1]", "expected an object, found array"),
    (b'{"id": 1}{"id": 2}', "not JSON: trailing characters (byte 10)"),
    (b'{"id": "7"}', "id: expected long, found string"),
    (b'{"user": {"age": "old"}}', "user.age: expected int, found string"),
    (b'{"tags": [1, 2.5]}', "tags[1]: expected int, found number"),
    (b'{"share": 1e400}', "share: expected double, found number out of range"),
    (b"\x00" * 100, "not JSON: invalid character (byte 0)"),
]


# A map column has every record read by the other, exact path: a record's fate must not depend on it.
@pytest.mark.parametrize("schema", [SCHEMA, SCHEMA + ', attributes: "map<string,long>"'])
def test_bad_records_are_quarantined_whole_with_their_reason_and_good_ones_between_them_land(
    schema: str, tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic()
    produce(name, [value for bad, _ in BAD for value in (GOOD, bad)], key="k", headers=[("h", b"1")])
    job = job_of(tmp_path, bootstrap, name, schema)
    run_once(job, spark)
    assert [(row["offset"], row["id"], row["text"]) for row in rows(job.table.path)] == [
        (2 * number, 7, "seven") for number in range(len(BAD))
    ]
    quarantined = rows(quarantine_of(job))
    assert [(row["offset"], row["value"], row["error"]) for row in quarantined] == [
        (2 * number + 1, value, error) for number, (value, error) in enumerate(BAD)
    ]
    assert {(row["topic"], row["partition"], row["key"]) for row in quarantined} == {(name, 0, b"k")}
    assert {str(row["headers"]) for row in quarantined} == {"[{'key': 'h', 'value': b'1'}]"}
    assert verify(job, values=Sample(None)).ok


def test_a_record_of_ten_megabytes_lands_whole_or_is_quarantined_whole(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(config={"max.message.bytes": "20000000"})
    good = b'{"id": 1, "text": "' + b"x" * TEN_MEGABYTES + b'"}'
    bad = b'{"id": "1", "text": "' + b"y" * TEN_MEGABYTES + b'"}'
    cut = good[:-2]
    produce(name, [GOOD, good, bad, cut, GOOD])
    job = job_of(tmp_path, bootstrap, name)
    run_once(job, spark)
    assert [(row["offset"], len(row["text"])) for row in rows(job.table.path)] == [(0, 5), (1, TEN_MEGABYTES), (4, 5)]
    quarantined = rows(quarantine_of(job))
    assert [row["value"] for row in quarantined] == [bad, cut]
    assert all(len(row["error"]) < 200 for row in quarantined)
    assert verify(job).ok
