"""`verify` proves a table against itself and its log, and names the first offset that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.errors import TransientError
from penstock.job.spec import JobSpec, kafka_of
from penstock.watch.verify import Sample, ViolationKind, verify
from tests.cases.verify import CHECKS, check_of, failed, filled, job_of_twenty, recreated, violation
from tests.support.kafka import Produce, Topics
from tests.support.small_table import Load, SmallTable, partitions_of, small_job, started


@pytest.fixture
def job(bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path) -> JobSpec:
    return job_of_twenty(bootstrap, topic, produce, tmp_path)


def test_a_table_that_holds_each_record_once_is_proved(job: JobSpec) -> None:
    filled(job)
    report = verify(job)
    assert failed(report) == []
    assert [check.name for check in report.checks] == CHECKS
    assert check_of(report, "rows").facts == {"rows": 17, "quarantine": 1}
    assert check_of(report, "offsets").facts == {"offsets": 18}
    assert check_of(report, "records").facts == {"records": 18, "offsets_deleted": 0}
    assert check_of(report, "log").facts == {"lag_records": 2, "epochs_compared": 0}


def test_records_that_a_commit_leaves_out_are_found_in_the_log(job: JobSpec) -> None:
    """By the table offset 5 had no record; the log has one there."""
    zero, _ = partitions_of(job)
    table = SmallTable(job)
    table.start(zero)
    table.commit(zero, Load(0, 10, [0, 1, 2, 3, 4, 6, 7, 8, 9]))
    shallow, deep = verify(job, deep=False), verify(job)
    assert shallow.ok
    assert failed(deep) == ["records"]
    assert deep.first_violation == violation(job, 0, 5, ViolationKind.MISSING)


def test_transaction_markers_are_not_missing_records(
    bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path
) -> None:
    name = topic()
    produce(name, ["a", "b"], transactional=True)
    job = small_job(bootstrap, name, tmp_path)
    [only] = partitions_of(job)
    table = SmallTable(job)
    table.start(only)
    table.commit(only, Load(0, 3, [0, 1]))
    assert verify(job).ok


def test_a_recorded_gap_and_expired_records_are_not_violations(job: JobSpec, topic: Topics) -> None:
    """The log lost [0, 5) after [0, 2) was read: the table has [0, 2), a gap [2, 5), and the rest."""
    zero, _ = partitions_of(job)
    table = SmallTable(job)
    table.start(zero)
    table.commit(zero, Load(0, 2, range(2)))
    topic.cut(zero.topic, 5, partition=0)
    ahead = verify(job)
    assert ahead.ok
    assert "a gap is ahead" in " ".join(check_of(ahead, "log").warnings)
    table.commit(zero, Load(2, 10, range(5, 10), gap=3))
    report = verify(job)
    assert failed(report) == []
    assert check_of(report, "records").facts == {"records": 5, "offsets_deleted": 5}


def test_a_recreated_topic_is_reported(job: JobSpec, topic: Topics, produce: Produce) -> None:
    filled(job)
    recreated(job, topic, produce)
    report = verify(job)
    assert failed(report) == ["log"]
    assert "recreated" in check_of(report, "log").detail


def test_an_altered_value_is_found_where_its_offset_was_kept(job: JobSpec) -> None:
    zero, one = partitions_of(job)
    table = started(job)
    table.commit(zero, Load(0, 10, range(10)))
    table.commit(one, Load(0, 10, range(10)))
    sampled = verify(job, values=Sample(10, seed=3))
    assert sampled.ok
    assert check_of(sampled, "values").facts == {"compared": 10, "of_offsets": 20, "seed": 3}
    DeltaTable(job.table.path).update({"id": "700"}, predicate='"partition" = 1 AND "offset" = 4')
    assert failed(verify(job)) == []
    report = verify(job, values=Sample(None))
    assert failed(report) == ["values"]
    assert report.first_violation == violation(job, 1, 4, ViolationKind.ALTERED)


@pytest.mark.usefixtures("impatient")
def test_a_request_to_an_unreachable_broker_is_transient(job: JobSpec) -> None:
    filled(job)
    away = replace(job, log=replace(kafka_of(job), bootstrap="127.0.0.1:1"))
    with pytest.raises(TransientError):
        verify(away)
