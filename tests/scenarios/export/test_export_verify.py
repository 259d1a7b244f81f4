"""`verify` proves an export against its log while it runs, after it crashed, and finds what is wrong."""

from __future__ import annotations

import json

import pytest
import typer

from penstock.cli.verify import verify as verify_command
from penstock.environment import Environment
from penstock.job.spec import job_of
from penstock.lake.compaction import EVERYTHING
from penstock.tables.export.export import ExportTable
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.upkeep import compact
from penstock.watch.verify import Check, Verdict, VerifyReport, verify
from tests.support.exports import ExportPipe, event, type_of
from tests.support.kafka import Produce, Topics

ROTATED = type_of("B", rotation="{events: 1000}")


class Crash(BaseException):
    """The process ends here."""


def failed(report: VerifyReport) -> list[str]:
    return [check.name for check in report.checks if not check.ok]


def check_of(report: VerifyReport, name: str) -> Check:
    return next(check for check in report.checks if check.name == name)


def mixed(count: int, start: int = 0) -> list[str]:
    """Types A, B and C in turn over three days; every tenth record is not JSON, every eleventh of an unknown type."""

    def one(number: int) -> str:
        if number % 10 == 9:
            return "not JSON"
        return event("?" if number % 11 == 10 else "ABC"[number % 3], number, day=number // 3 % 3)

    return [one(number) for number in range(start, start + count)]


def test_verify_finds_no_violation_at_any_step_of_a_running_job(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name)
    steps: list[str] = []
    wrong: list[tuple[str, str]] = []

    def look(step: str) -> None:
        # Only at the first of many renames and type commits of a run: reading the log takes time.
        report = verify(export.job, deep=step not in steps)
        steps.append(step)
        wrong.extend((step, check.detail) for check in report.checks if check.verdict is Verdict.VIOLATED)

    for start in (0, 30):
        steps.clear()
        produce(name, mixed(30, start))
        export.run_to_end(at_step=look)
    assert wrong == []
    assert {"type_committed", "renaming", "renamed", "quarantined"} <= set(steps)
    steps.clear()
    job = export.job
    logs = ExportLogs(job_of(job, ExportSpec), Environment(at_step=look))
    compact(ExportTable(logs), 1 << 20, all_days=True, progress=None, effort=EVERYTHING)
    assert wrong == []
    assert {"compact_committed", "removing", "removed", "renaming"} <= set(steps)


@pytest.mark.parametrize("step", ["staged", "type_committed", "renaming", "quarantined"])
def test_a_job_killed_at_any_step_is_proved_after_its_restart(
    export: ExportPipe, topic: Topics, produce: Produce, step: str
) -> None:
    name = topic()
    export.describe(name)
    produce(name, mixed(30))
    export.run_to_end()
    produce(name, mixed(30, start=30))

    def die(reached: str) -> None:
        if reached == step:
            raise Crash(reached)

    with pytest.raises(Crash):
        export.run_to_end(at_step=die)
    assert failed(verify(export.job)) == (["types"] if step in ("type_committed", "renaming") else [])
    export.run_to_end()
    report = verify(export.job)
    assert failed(report) == []
    assert check_of(report, "records").facts == {"records": 60, "offsets_deleted": 0}


def test_records_waiting_for_a_rotation_are_counted_as_deferred(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name, types=(type_of("A"), ROTATED, type_of("C")))
    produce(name, mixed(30))
    with export.opened() as pipeline:
        pipeline.round()
    [state] = export.state.partitions.values()
    assert state.totals.deferred > 0
    report = verify(export.job)
    assert failed(report) == []
    export.run_to_end()
    after = verify(export.job)
    assert failed(after) == []
    assert check_of(after, "offsets").facts == {"offsets": 30}


def test_damage_is_named_with_its_first_offset_by_the_command_too(
    export: ExportPipe, topic: Topics, produce: Produce, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic()
    export.describe(name)
    produce(name, [event("AB"[number % 2], number) for number in range(10)])
    export.run_to_end()
    verify_command(export.path, json=True, shallow=False)
    assert json.loads(capsys.readouterr().out)["ok"] is True
    export.file("B/day=2026-03-01/0.9.parquet").unlink()
    with pytest.raises(typer.Exit):
        verify_command(export.path, json=True, shallow=False)
    output = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in output["checks"] if not item["ok"]] == ["rows", "offsets", "records"]
    assert (output["first_violation"]["offset"], output["first_violation"]["kind"]) == (1, "missing")


def test_before_its_first_run_there_is_nothing_to_prove(export: ExportPipe, topic: Topics) -> None:
    export.describe(topic())
    assert failed(verify(export.job)) == ["table"]


# one Delta table per type


def test_delta_tables_of_the_types_are_proved(export: ExportPipe, topic: Topics, produce: Produce) -> None:
    name = topic(partitions=2)
    export.describe(name, export="format: delta")
    produce(name, mixed(40), partition=0)
    produce(name, mixed(20), partition=1)
    export.run_to_end()
    report = verify(export.job)
    assert failed(report) == []
    assert check_of(report, "offsets").facts == {"offsets": 60}


def test_a_type_that_is_ahead_of_the_job_is_not_proven_until_it_is_counted(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name, export="format: delta")
    produce(name, [event("AB"[number % 2], number) for number in range(10)])
    export.run_to_end()
    produce(name, [event("AB"[number % 2], number) for number in range(10, 20)])

    def die(step: str) -> None:
        if step == "type_committed":
            raise Crash(step)

    with pytest.raises(Crash):
        export.run_to_end(at_step=die)
    ahead = verify(export.job)
    assert ahead.verdict is Verdict.NOT_PROVEN
    assert failed(ahead) == ["types"]
    export.run_to_end()
    report = verify(export.job)
    assert failed(report) == []
    assert check_of(report, "rows").facts == {"rows": 20, "quarantine": 0}
