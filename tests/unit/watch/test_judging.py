"""A running job is judged by its rounds, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.events import BatchCommitted, Event, PartitionProgress, ProgressMeasured, Retrying, RoundDone
from penstock.job.spec import AlertLimits, FlushPolicy, JobSpec
from penstock.reporting.verdicts import Verdict
from penstock.watch.judging import Judged, Judging, VerdictChanged
from tests.support.small_table import small_job

AWAY = Retrying("the broker is away", "", 1.0)


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: Event) -> None:
        self.events.append(event)

    @property
    def last(self) -> Judged:
        return [event for event in self.events if isinstance(event, Judged)][-1]

    @property
    def changes(self) -> list[str]:
        return [event.verdict for event in self.events if isinstance(event, VerdictChanged)]


class Run:
    """A job whose process is observed every second."""

    def __init__(self, job: JobSpec) -> None:
        self.seconds = 1_000_000.0
        self.recorder = Recorder()
        self.judging = Judging(job, self.recorder, lambda: self.seconds)

    def rounds(self, seconds: int, *partitions: PartitionProgress, commits: bool = False) -> Verdict:
        for _ in range(seconds):
            self.seconds += 1
            progress = {f"orders/{number}": partition for number, partition in enumerate(partitions)}
            self.judging.event(ProgressMeasured(progress))
            if commits:
                self.judging.event(BatchCommitted("x", 1))
            self.judging.event(RoundDone())
        return self.recorder.last.judgement.verdict


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Records may wait for 25 s without a move; it is judged every second."""
    job = small_job("127.0.0.1:1", "orders", tmp_path)
    alerts = AlertLimits(lag_records_max=1_000, stop_after_seconds=20, window_seconds=30)
    return Run(replace(job, alerts=alerts, flush=FlushPolicy(allowed_latency_seconds=5)))


AT_END = PartitionProgress(10, 0, 10, topic_id="a")
UNREAD = PartitionProgress(10, 0, 15, topic_id="a")


def test_records_that_are_not_read_for_long_are_a_stop_and_reading_them_ends_it(run: Run) -> None:
    assert run.rounds(100, AT_END) is Verdict.OK
    assert run.rounds(26, UNREAD) is Verdict.OK
    assert run.rounds(1, UNREAD) is Verdict.STOP
    assert run.rounds(1, replace(UNREAD, position=15), commits=True) is Verdict.OK
    assert run.recorder.changes == ["STOP", "OK"]


def test_a_partition_that_stays_while_the_job_commits_is_a_stall(run: Run) -> None:
    assert run.rounds(30, UNREAD, AT_END, commits=True) is Verdict.STALL
    assert {name: it.verdict for name, it in run.recorder.last.partitions.items()} == {
        "orders/0": Verdict.STALL,
        "orders/1": Verdict.OK,
    }


def test_a_position_that_goes_back_is_a_rewind_but_not_in_another_topic_of_the_name(run: Run) -> None:
    run.rounds(2, AT_END)
    assert run.rounds(1, PartitionProgress(0, 0, 10, topic_id="b"), commits=True) is Verdict.OK
    run.rounds(2, replace(AT_END, topic_id="b"), commits=True)
    assert run.rounds(1, PartitionProgress(9, 0, 10, topic_id="b"), commits=True) is Verdict.REWIND


def test_a_limit_is_an_alert_with_its_rule(run: Run) -> None:
    assert run.rounds(1, PartitionProgress(0, 0, 1_000), commits=True) is Verdict.ERR
    alerts = run.recorder.last.alerts
    assert (list(alerts["lag"]), alerts["retention"]) == (
        ["orders/0: 1000 records up to the end of the log, the limit is 1000 records"],
        [],
    )


def test_a_server_that_stays_away_is_an_error_until_a_round_succeeds(run: Run) -> None:
    run.rounds(1, AT_END)
    run.judging.event(AWAY)
    assert run.recorder.last.judgement.verdict is Verdict.OK
    run.judging.event(AWAY)
    assert run.recorder.last.judgement.reason == "the broker is away"
    assert run.rounds(2, AT_END) is Verdict.OK
    assert run.recorder.changes == ["ERR", "OK"]


def test_a_gap_is_an_error_and_not_lag(run: Run) -> None:
    assert run.rounds(1, PartitionProgress(10, 50, 60)) is Verdict.ERR
    assert "[10, 50)" in run.recorder.last.judgement.reason
