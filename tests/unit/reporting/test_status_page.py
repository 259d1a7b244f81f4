"""`status` shows what only one kind of table reports, without code about that kind."""

from __future__ import annotations

import io
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.status import FailOn, page, sparkline
from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.state import DeltaPartition, Totals
from penstock.logs.log import Bounds, Partition
from penstock.proof.numbers import LogFacts, TopicIncarnations
from penstock.reporting.frame import Past, job_status
from penstock.reporting.model import Alert, AlertKind, JobStatus, LogView, PartitionColumn, PartitionStatus, Section
from penstock.reporting.verdicts import Judgement, Verdict
from tests.support.small_table import small_job

ZERO = Partition("orders", "id", 0)


class Leak(StrEnum):
    TANK_LEAKS = "tank leaks"


@pytest.fixture
def status(tmp_path: Path) -> JobStatus:
    """A kind of table for this test, with a level in every partition."""
    state = DeltaPartition(position=8, token=3, origin=0, totals=Totals(read=8, written=8))
    incarnations = TopicIncarnations((ZERO,), fingerprints={"orders": topic_fingerprint("id")})
    log = LogView(LogFacts({"orders": "id"}, {ZERO: Bounds(5, 10)}), mirrored={ZERO: 8})

    def leveled(partition: PartitionStatus) -> PartitionStatus:
        level = PartitionColumn("level", "level", "position", 4)
        return replace(partition, further=(level,), shown_position=4)

    job = small_job("127.0.0.1:1", "orders", tmp_path)
    common = job_status(job, 7, incarnations, {ZERO: state}, log, Past(now=0.0), leveled)
    tanks = Section("tanks", [{"tank": "north"}], ("tank", "litres"), (("north", "12"),), ("a tank leaks",))
    return replace(common, sections=(tanks,), alerts=(*common.alerts, Alert(Leak.TANK_LEAKS, "north leaks")))


def lines_of(status: JobStatus) -> list[list[str]]:
    printed = io.StringIO()
    Console(file=printed, width=200).print(page([status], verbose=True))
    return [line.split() for line in printed.getvalue().splitlines()]


def test_columns_of_a_kind_are_in_place_and_its_section_follows_the_partitions(status: JobStatus) -> None:
    lines = lines_of(status)
    assert lines[0][:2] == ["ERR", "orders"]
    assert lines[1][:6] == ["partition", "verdict", "position", "level", "end", "lag"]
    assert lines[2][:6] == ["orders/0", "ERR", "8", "4", "10", "2"]
    assert lines[3:6] == [["tank", "litres"], ["north", "12"], ["a", "tank", "leaks"]]
    assert lines[-1] == ["!", "north", "leaks"]


def test_values_of_a_kind_have_their_own_json_keys(status: JobStatus) -> None:
    content = status.as_json()
    assert content["tanks"] == [{"tank": "north"}]
    assert content["partitions"][0]["level"] == 4
    assert content["alerts"][-1] == {"kind": "tank_leaks", "text": "north leaks"}


def test_a_gap_is_measured_from_the_lowest_needed_offset(status: JobStatus) -> None:
    assert [alert.kind for alert in status.alerts] == [AlertKind.GAP_AHEAD, Leak.TANK_LEAKS]
    assert status.alerts[0].text == "orders/0: the log no longer has offsets [4, 5)"


def test_without_verbose_a_partition_is_one_line_of_80_columns(status: JobStatus) -> None:
    printed = io.StringIO()
    Console(file=printed, width=80).print(page([status], verbose=False, width=80))
    assert ["partition", "verdict", "position", "lag", "age", "written", "quarantined"] in [
        line.split() for line in printed.getvalue().splitlines()
    ]


def judged(job: JobStatus, **judgements: Judgement) -> JobStatus:
    """The same job with these partitions of its first one, and without alerts."""
    numbered = enumerate(judgements.values())
    partitions = tuple(
        replace(job.partitions[0], partition=Partition("orders", "id", number), judgement=judgement)
        for number, judgement in numbered
    )
    return replace(job, partitions=partitions, alerts=()).judged()


def test_a_status_begins_with_the_verdict_and_states_why_partitions_are_not_ok(status: JobStatus) -> None:
    stalled = Judgement(Verdict.STALL, "records wait for 12min")
    lines = lines_of(judged(status, a=Judgement(), b=stalled))
    assert lines[0][:2] == ["STALL", "orders"]
    assert " ".join(lines[1]) == "STALL orders/1: records wait for 12min"
    assert [line[1] for line in lines[3:5]] == ["OK", "STALL"]


def test_many_reasons_are_cut(status: JobStatus) -> None:
    stopped = {f"p{number}": Judgement(Verdict.STOP, "no commit") for number in range(13)}
    assert lines_of(judged(status, **stopped))[11] == ["and", "3", "more"]


def test_a_watch_shows_how_the_lag_went(status: JobStatus) -> None:
    lags = {"orders": [8, 4, 0]}
    printed = io.StringIO()
    Console(file=printed, width=80).print(page([status], verbose=False, width=80, lags=lags))
    assert "lag 2  █▄▁▂\n" in printed.getvalue()
    assert sparkline([]) == "" and sparkline([0, 0]) == "▁▁"


@pytest.mark.parametrize(
    ("verdict", "concerned"),
    [(Verdict.OK, []), (Verdict.WARN, ["warn"]), (Verdict.STOP, ["warn", "stall", "stop"])],
)
def test_fail_on_takes_a_verdict_and_those_that_are_worse(
    status: JobStatus, verdict: Verdict, concerned: list[str]
) -> None:
    job = judged(status, a=Judgement(verdict, "so it is"))
    assert [limit.value for limit in FailOn if limit.concerns(job)] == concerned
