"""The contract of every kind of table: the toy's, a single Delta table, and both exports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from penstock.claims import StaticClaims
from penstock.engine.round import BatchLanded
from penstock.environment import Environment, new_batch_id
from penstock.errors import FencedError, UserError
from penstock.failpoints import BATCH_STEPS, START_STEPS
from penstock.lake.proposal import FencePart, Proposal, StartPart
from penstock.logs.log import Batch, Partition, Slice
from penstock.plan import GapError
from penstock.reporting.model import JobStatus
from penstock.spark.session import LateSession
from penstock.tables.kind import CompactRequest, SchemaChanged, VacuumRequest
from penstock.tables.registry import KINDS, kind_of
from penstock.watch.status import status
from penstock.watch.verify import verify
from tests.contract.kinds import DELTA, KEYED, KINDS_TRIED, ONE, ROLLUP, ZERO, Subject, loaded, point, record
from tests.contract.toy import ToyKind


class CrashError(Exception):
    """The process ends here."""


class Holding(StaticClaims):
    """The claims of a process that shares the job, under a token of its own."""

    shared = True

    def __init__(self, token: int) -> None:
        self._token = token

    def held(self, partitions: Iterable[Partition], table_tokens: Mapping[Partition, int]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, self._token)


@pytest.fixture(params=KINDS_TRIED)
def subject(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setitem(KINDS, ToyKind.name, ToyKind())
    return KINDS_TRIED[request.param](tmp_path)


def staged(subject: Subject, token: int, end: int) -> tuple[Batch, dict[Partition, int], object]:
    """A batch that a process under this token has written and not committed."""
    rounds = subject.open(claims=Holding(token))
    partitions = rounds.log.partitions()
    tokens, _ = rounds.starter.begin(rounds.claim(partitions), partitions, rounds.log.bounds(partitions))
    rounds.table.own(tokens)
    batch = Batch(new_batch_id(), tuple(Slice(partition, 0, end, 0) for partition in partitions), flush=True)
    result = rounds.writer.stage(batch)
    assert not isinstance(result, SchemaChanged)
    return batch, tokens, result


def test_every_record_becomes_one_row_and_is_counted(subject: Subject) -> None:
    subject.fill()
    subject.run()
    subject.fill()
    table = subject.run().table
    state = table.state([ZERO, ONE])
    assert subject.read() == subject.expected
    for item in (ZERO, ONE):
        partition_state = state.of(item)
        totals = subject.totals(table, item)
        assert (partition_state.origin, partition_state.position, totals.written, totals.conserved) == (0, 12, 12, True)
        assert table.shown_position(item) == 12
    assert not table.lags([ZERO, ONE])
    assert subject.log.view(subject.job.log).shown([ZERO, ONE]) == {ZERO: 12, ONE: 12}


def test_a_run_with_nothing_new_does_not_open_spark(subject: Subject) -> None:
    def open_session() -> SparkSession:
        raise AssertionError("Spark was opened")

    subject.fill()
    subject.run()
    subject.run(spark=cast(SparkSession, LateSession(open_session)))


class StoppedError(Exception):
    """Ends a first run before its first commit of rows."""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(DELTA, DELTA.replace("id: long", "id: string, more: int"), id="delta columns"),
        pytest.param(DELTA, DELTA.replace("'}}}}", "', partition_by: [type]}}}}"), id="delta partitions"),
        pytest.param(KEYED, KEYED.replace("row_keys: [id]", "row_keys: [id, type]"), id="keyed keys"),
        pytest.param(KEYED, KEYED.replace("id: long", "id: string"), id="keyed type"),
        pytest.param(ROLLUP, ROLLUP.replace("path: '{path}'", "path: '{path}', windows: [5m]"), id="rollup windows"),
        pytest.param(
            ROLLUP, ROLLUP.replace("path: '{path}'", "path: '{path}', aggregates: [mean]"), id="rollup aggregates"
        ),
    ],
)
def test_a_table_that_nothing_was_read_into_follows_the_job_file(tmp_path: Path, before: str, after: str) -> None:
    def stop(step: str) -> None:
        if step == "planned":
            raise StoppedError

    content = point if before is ROLLUP else record
    first = Subject(loaded(tmp_path, before), list, content=content)
    first.fill()
    with pytest.raises(StoppedError):
        first.run(Environment(at_step=stop))
    second = Subject(loaded(tmp_path, after), list, log=first.log)
    second.run()
    assert verify(second.job, open_log=lambda job: second.log.view(job.log)).ok


def test_a_renamed_job_writes_no_record_twice(subject: Subject) -> None:
    """It is refused before its first commit, unless its kind finds the records that are there; the old name goes on."""
    subject.fill()
    subject.run()
    subject.job = replace(subject.job, name="renamed")
    with suppress(UserError):
        subject.run()
    assert subject.read() == subject.expected
    subject.job = replace(subject.job, name="contract")
    subject.fill()
    subject.run()
    assert subject.read() == subject.expected


def test_a_partition_is_started_once(subject: Subject) -> None:
    table = subject.open().table
    assert table.state([ZERO]).of(ZERO).position is None
    first = table.commit(Proposal("contract", new_batch_id(), (StartPart(ZERO, 3, 1),)))
    again = table.commit(Proposal("contract", new_batch_id(), (StartPart(ZERO, 0, 1),)))
    assert (len(first.accepted), len(again.accepted), len(again.refused)) == (1, 0, 1)
    assert table.state([ZERO]).of(ZERO).position == 3


def test_an_older_token_never_writes(subject: Subject) -> None:
    subject.fill()
    batch, tokens, result = staged(subject, token=1, end=4)
    newer = subject.open()
    fences = tuple(FencePart(item, 2) for item in (ZERO, ONE))
    newer.table.commit(Proposal("contract", new_batch_id(), fences))
    landed = subject.open(claims=Holding(1)).table.land(batch, tokens, result)
    assert (landed.outcome.version, len(landed.outcome.refused)) == (None, 2)
    assert subject.read() == []
    subject.run(claims=Holding(2))
    assert subject.read() == subject.expected


def test_only_one_of_two_owners_commits_an_offset(subject: Subject) -> None:
    subject.fill()
    batch, tokens, result = staged(subject, token=1, end=4)
    subject.run(claims=Holding(1))
    landed = subject.open(claims=Holding(1)).table.land(batch, tokens, result)
    assert landed.outcome.version is None
    assert subject.read() == subject.expected


def test_a_refused_slice_refuses_only_itself_or_the_whole_batch(subject: Subject) -> None:
    subject.fill()
    batch, tokens, result = staged(subject, token=1, end=6)
    table = subject.open(claims=Holding(1)).table
    table.commit(Proposal("contract", new_batch_id(), (FencePart(ONE, 2),)))
    landed = table.land(batch, tokens, result)
    accepted = [ZERO] if table.divisible else []
    assert [part.partition for part in landed.outcome.accepted] == accepted
    assert ONE in {item.partition for item in landed.outcome.refused}
    assert subject.read() == [(partition.number, offset) for partition in accepted for offset in range(6)]


def steps_of(tried: str) -> tuple[str, ...]:
    """Of every job, and of the kind; the steps of other kinds are never reached."""
    name = tried.partition(" ")[0]
    kind = ToyKind() if name == ToyKind.name else KINDS[name]
    return (*START_STEPS, *BATCH_STEPS, *kind.steps)


@pytest.mark.parametrize(
    ("subject", "step"), [(tried, step) for tried in KINDS_TRIED for step in steps_of(tried)], indirect=["subject"]
)
def test_a_crash_at_any_step_loses_and_doubles_nothing(subject: Subject, step: str) -> None:
    subject.fill()

    def crash(reached: str) -> None:
        if reached == step:
            raise CrashError(step)

    try:
        subject.run(Environment(at_step=crash))
    except CrashError:
        pass
    subject.fill(2)
    subject.run()
    assert subject.read() == subject.expected
    assert verify(subject.job, open_log=lambda job: subject.log.view(job.log)).ok


def test_a_second_process_where_one_is_expected_ends_with_an_error(subject: Subject) -> None:
    subject.fill()
    rounds = subject.open()

    def rival(reached: str) -> None:
        if reached == "staged":
            subject.run()

    rounds.at_step = rival
    with pytest.raises(FencedError):
        rounds.round(flush_now=True)
    assert subject.read() == subject.expected


def test_offsets_that_the_log_lost_stop_the_job_before_anything_is_written(subject: Subject) -> None:
    subject.fill()
    assert isinstance(subject.open().round(flush_now=True), BatchLanded)
    subject.fill()
    subject.log.expire(ZERO, 9)
    with pytest.raises(GapError):
        subject.run()
    assert len(subject.read()) == 12


def test_a_new_kind_is_verified_compacted_vacuumed_and_shown(subject: Subject) -> None:
    kind = kind_of(subject.job)
    before = _status(subject)
    assert not before.started
    for _ in range(3):
        subject.fill()
        subject.run()
    kind.compact(subject.job, CompactRequest(), Environment(), None)
    kind.vacuum(subject.job, VacuumRequest(), Environment())
    assert subject.read() == subject.expected
    assert verify(subject.job, open_log=lambda job: subject.log.view(job.log)).ok
    result = _status(subject)
    assert {partition.partition: partition.position for partition in result.partitions} == {ZERO: 18, ONE: 18}
    assert {item.lag_records for item in result.partitions} == {0}
    assert result.as_json()["job"] == "contract"
    assert subject.job.table.summary


def _status(subject: Subject) -> JobStatus:
    return status(subject.job, open_log=lambda job: subject.log.view(job.log))
