"""A log brings its own part of the job file, as a kind of table does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.job.spec import kafka_of
from penstock.logs.wal.log import WalLogSpec
from tests.unit.job.conftest import BASE, Faults, Load

KAFKA = 'kafka: {bootstrap: "kafka-1:9092", topics: [web_requests]}'
URL = "http://127.0.0.1:7070"
WAL = BASE.replace(KAFKA, f"wal: {{url: '{URL}', topics: [orders]}}")


def test_a_job_reads_a_wal(load: Load) -> None:
    log = load(WAL).log
    assert isinstance(log, WalLogSpec)
    assert (log.url, log.topics, log.start) == (URL, ("orders",), "earliest")
    assert re.fullmatch(r"web-requests\.[0-9a-f]{16}", log.group)
    assert load(WAL).claims is None
    assert load(WAL.replace("[orders]", "[orders], start: {0: 7}")).log.start == {"orders": {0: 7}}
    assert load(WAL.replace("topics: [orders]", "topic_pattern: 'o.*', start: latest")).log.topic_pattern == "o.*"


def test_a_group_of_a_wal_is_a_name_and_turns_no_claims_on(load: Load) -> None:
    job = load(WAL.replace("[orders]", "[orders], group: readers"))
    assert re.fullmatch(r"readers\.[0-9a-f]{16}", job.log.group) and job.claims is None
    with pytest.raises(UserError):
        kafka_of(job)


def test_jobs_of_one_name_with_different_tables_are_different_readers(load: Load) -> None:
    one, same = load(WAL).log, load(WAL).log
    other = load(WAL.replace("s3://lake/web", "s3://lake/other")).log
    assert isinstance(one, WalLogSpec) and isinstance(same, WalLogSpec) and isinstance(other, WalLogSpec)
    assert one.group == same.group != other.group


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (BASE.replace(KAFKA, "{}"), "log.kafka", "required key is missing; one of kafka, wal"),
        (BASE.replace(KAFKA, f"{KAFKA}\n  wal: {{url: '{URL}', topics: [a]}}"), "log.wal", "contradicts log.kafka"),
        (WAL.replace(f"url: '{URL}', ", ""), "log.wal.url", "required key is missing"),
        (WAL.replace(URL, "127.0.0.1:7070"), "log.wal.url", "expected http://HOST:PORT"),
        (WAL.replace(URL, "ftp://h:1"), "log.wal.url", "expected http://HOST:PORT"),
        (WAL.replace(URL, "http://h:x"), "log.wal.url", "expected http://HOST:PORT"),
        (WAL.replace(URL, "http://h:1/a"), "log.wal.url", "expected http://HOST:PORT"),
        (WAL.replace("[orders]", "[orders], group: a/b"), "log.wal.group", "invalid job name 'a/b'"),
        (WAL.replace("[orders]", "[orders], start: {0: -1}"), "log.wal.start.0", "expected a whole number"),
        (WAL.replace("[orders]", "[a b]"), "log.wal.topics[0]", "invalid topic name 'a b'"),
        (WAL.replace("topics: [orders]", ""), "log.wal.topics", "required key is missing"),
        (WAL.replace("topics", "topicz"), "log.wal.topicz", "unknown key; did you mean topics?"),
        (WAL.replace("wal:", "wall:"), "log.wall", "unknown key; did you mean wal?"),
        (WAL + "claims: group\n", "claims", "log.wal cannot be shared"),
        (WAL + "claims: {heartbeat: 5s}\n", "claims", "log.wal cannot be shared"),
        (WAL.replace("[orders]", "[orders], transactional: true"), "log.wal.transactional", "unknown key"),
    ],
)
def test_faults_of_a_wal_section_are_reported(faults: Faults, text: str, key: str, message: str) -> None:
    result = [(where, fault) for _, where, fault in faults(text)]
    assert [where for where, fault in result if message in fault] == [key], result


def test_static_claims_are_accepted(load: Load, tmp_path: Path) -> None:
    assert load(WAL + "claims: static\n").claims is None
