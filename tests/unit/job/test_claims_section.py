"""`claims` of a job file: who shares partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.job.faults import JobFileError
from penstock.job.spec import ClaimsSpec, JobSpec
from penstock.tables.registry import load_job

JOB = """\
job: web
log:
  kafka: {{bootstrap: "kafka:9092", topics: [web]{kafka}}}
decode: raw
table:
  delta: {{path: table}}
{claims}
"""


def load(folder: Path, kafka: str = "", claims: str = "") -> JobSpec:
    path = folder / "job.yaml"
    path.write_text(JOB.format(kafka=f", {kafka}" if kafka else "", claims=claims), encoding="utf-8")
    return load_job(path, {})


def faults(folder: Path, kafka: str = "", claims: str = "") -> list[str]:
    with pytest.raises(JobFileError) as caught:
        load(folder, kafka, claims)
    return [fault.key for fault in caught.value.faults]


def test_a_job_that_names_a_group_shares_its_partitions(tmp_path: Path) -> None:
    assert load(tmp_path, kafka="group: readers").claims == ClaimsSpec()


def test_a_job_without_a_group_owns_every_partition(tmp_path: Path) -> None:
    assert load(tmp_path).claims is None


def test_claims_can_be_set_to_static_or_group(tmp_path: Path) -> None:
    assert load(tmp_path, kafka="group: readers", claims="claims: static").claims is None
    assert load(tmp_path, claims="claims: group").claims == ClaimsSpec()


def test_every_claims_option_is_read(tmp_path: Path) -> None:
    stated = "claims: {client_id: w-1, heartbeat: 2s, topic: coordination, partitions: 4, work_timeout: 30m}"
    assert load(tmp_path, claims=stated).claims == ClaimsSpec(
        client_id="w-1",
        heartbeat_seconds=2.0,
        topic="coordination",
        partitions=4,
        work_timeout_seconds=1800.0,
    )


@pytest.mark.parametrize(
    ("stated", "key"),
    [
        ("claims: {heartbeat: 100ms}", "claims.heartbeat"),
        ("claims: {topic: 'a/b'}", "claims.topic"),
        ("claims: {client_id: ''}", "claims.client_id"),
        ("claims: {partitions: 5000}", "claims.partitions"),
        ("claims: {work_timeout: 5s}", "claims.work_timeout"),
        ("claims: {unit: topic}", "claims.unit"),
        ("claims: {hartbeat: 5s}", "claims.hartbeat"),
        ("delivery: exactly_once", "delivery"),
    ],
)
def test_contradictions_are_reported_at_their_location(tmp_path: Path, stated: str, key: str) -> None:
    assert faults(tmp_path, claims=stated) == [key]
