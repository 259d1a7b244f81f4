"""`status` of an export: its partitions, types and days from real logs, and the ends of partitions."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from penstock.cli.status import page
from penstock.cli.status import status as status_command
from penstock.errors import UserError
from penstock.reporting.model import AlertKind
from penstock.reporting.verdicts import Verdict
from penstock.tables.export.monitoring import ExportAlert
from tests.cases.export_status import Fan, at, fan_of, with_fs_behind
from tests.support.kafka import Produce, Topics

DAY = "2026-03-01"


@pytest.fixture
def fan(bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path) -> Fan:
    return fan_of(bootstrap, topic, produce, tmp_path)


def test_status_of_a_job_without_logs_is_not_started_and_writes_nothing(fan: Fan) -> None:
    status = fan.status()
    assert (status.started, status.exit_code, fan.types()) == (False, 0, {})
    assert not fan.root.exists()


def test_a_type_shows_its_rows_and_where_it_lags(fan: Fan) -> None:
    with_fs_behind(fan)
    fs, gc = fan.types()["fs"], fan.types()["gc"]
    assert [(item["rows"], item["files"], item["gap_records"]) for item in (fs, gc)] == [(5, 1, 8), (8, 2, 0)]
    assert fan.texts(ExportAlert.TYPE_LAGGING) == [
        "type fs is due and not written since 2026-03-03T01:06:40Z: 5 records wait"
    ]


def test_lag_and_discrepancy_are_reported_and_raise_alerts_beyond_their_limits(fan: Fan) -> None:
    with_fs_behind(fan)
    assert [fan.partition(number).lag_records for number in (0, 1)] == [0, 2]
    assert fan.texts(ExportAlert.DISCREPANCY) == [f"{fan.partitions[1]}: its types are 8 records apart, the limit is 3"]
    assert fan.kinds() == [ExportAlert.TYPE_LAGGING, ExportAlert.DISCREPANCY]


def test_commits_have_the_counts_of_all_types(fan: Fan) -> None:
    with_fs_behind(fan)
    status = fan.status()
    totals = [partition.totals for partition in status.partitions]
    assert sum(commit.written for commit in status.commits) == sum(counted.written for counted in totals) == 13
    assert sum(commit.read for commit in status.commits) == sum(counted.read for counted in totals)
    assert sum(commit.quarantined for commit in status.commits) == sum(counted.quarantined for counted in totals)
    assert sum(commit.files for commit in status.commits) == sum(item["files"] for item in fan.types().values()) == 3
    assert status.judgement.verdict is Verdict.ERR, "the discrepancy is beyond its limit"


def test_a_type_that_caught_up_raises_no_alert(fan: Fan) -> None:
    with_fs_behind(fan)
    fan.catch_up(1, {"fs": 0}, 8)
    fan.mirror(10, 8)
    assert fan.types()["fs"]["gap_records"] == 0
    assert fan.global_position(1) == 8
    assert fan.kinds() == []


def test_unread_records_raise_a_lag_alert(fan: Fan, produce: Produce) -> None:
    with_fs_behind(fan)
    produce(fan.partitions[0].topic, ["{}"] * 5, partition=0)
    assert fan.partition(0).lag_records == 5
    assert AlertKind.LAG in fan.kinds()


def test_a_type_waiting_for_its_rotation_raises_no_alert(fan: Fan) -> None:
    text = fan.path.read_text().replace("fs: {", "fs: {rotation: {every: 1h}, ")
    fan.path.write_text(text)
    fan.now = time.time()
    fan.start()
    fan.write(0, 0, 3, deferred=["fs"])
    assert fan.types()["fs"]["gap_records"] == 3
    assert ExportAlert.TYPE_LAGGING not in fan.kinds()


def test_files_that_cannot_be_renamed_are_reported(fan: Fan) -> None:
    fan.start()
    fan.write(0, 0, 3)
    (fan.root / "fs").rename(fan.root / "_aside")
    (fan.root / "fs").write_text("in the way")
    fan.write(0, 3, 10)
    assert fan.partition(0).position == 10
    assert "type fs: 1 files wait for their final names" in fan.texts(ExportAlert.TYPE_LAGGING)


def test_the_command_prints_text_and_json(fan: Fan, capsys: pytest.CaptureFixture[str]) -> None:
    with_fs_behind(fan)
    status_command([fan.path], json=True)
    [output] = json.loads(capsys.readouterr().out)
    assert [item["global_position"] for item in output["partitions"]] == [10, 0]
    assert [(item["type"], item["rows"], item["gap_records"]) for item in output["types"]] == [
        ("fs", 5, 8),
        ("gc", 8, 0),
    ]
    assert [item["kind"] for item in output["alerts"]] == ["type_lagging", "discrepancy"]
    printed = io.StringIO()
    Console(file=printed, width=200).print(page([fan.status()], verbose=True))
    text = printed.getvalue()
    assert "type fs is due and not written since 2026-03-03T01:06:40Z: 5 records wait" in text


# days

Ask = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def ask(fan: Fan, capsys: pytest.CaptureFixture[str]) -> Ask:
    """`penstock status --day --json`: its exit code and its answer."""

    def asking(day: str, *types: str) -> tuple[int, dict[str, Any]]:
        code = 0
        try:
            status_command([fan.path], json=True, day=datetime.fromisoformat(day), types=list(types))
        except typer.Exit as end:
            code = end.exit_code
        [output] = json.loads(capsys.readouterr().out)
        return code, output

    return asking


def test_a_day_is_complete_for_the_types_that_are_not_behind(fan: Fan, ask: Ask) -> None:
    with_fs_behind(fan)
    code, output = ask(DAY)
    assert (code, output["complete"]) == (1, False)
    assert [(item["type"], item["state"]) for item in output["types"]] == [("fs", "open"), ("gc", "complete")]
    assert f"{fan.partitions[1]} is at " in output["types"][0]["reason"]
    assert ask(DAY, "gc")[0] == 0
    assert ask(DAY, "fs")[0] == 1


def test_a_day_that_is_not_over_is_not_complete(fan: Fan, ask: Ask) -> None:
    with_fs_behind(fan)
    code, output = ask("2026-03-02", "gc")
    assert (code, output["types"][0]["state"]) == (1, "open")


def test_a_complete_day_is_shown_and_opened_again_by_late_rows(fan: Fan, ask: Ask) -> None:
    fan.start()
    for number in range(2):
        fan.write(number, 0, 7, watermark_ms=at("2026-03-02T05:00:00"))
    gc = fan.types()["gc"]
    assert (gc["last_complete_day"], gc["open_since"]) == (DAY, None)
    assert ask(DAY)[0] == 0
    fan.write(0, 7, 10)
    gc = fan.types()["gc"]
    assert (gc["last_complete_day"], gc["open_since"]) == (None, DAY)
    code, output = ask(DAY)
    assert code == 1
    assert [(item["type"], item["state"]) for item in output["types"]] == [("fs", "complete"), ("gc", "reopened")]


def test_before_the_first_run_no_day_is_complete(ask: Ask) -> None:
    code, output = ask(DAY)
    assert code == 1
    assert [item["reason"] for item in output["types"]] == ["the job has no position yet"] * 2


def test_a_type_that_the_job_does_not_have_is_refused_with_the_nearest_name(fan: Fan, ask: Ask) -> None:
    with pytest.raises(UserError) as caught:
        ask(DAY, "gcc")
    assert caught.value.hint == "did you mean gc?"
    with pytest.raises(UserError):
        status_command([fan.path], types=["gc"])


def test_the_result_is_printed_with_its_reason(fan: Fan, capsys: pytest.CaptureFixture[str]) -> None:
    with_fs_behind(fan)
    status_command([fan.path], day=datetime.fromisoformat(DAY), types=["gc"])
    printed = capsys.readouterr().out
    assert f"fan  {DAY}" in printed
    assert "gc  complete: the watermark 2026-03-02T05:00:00Z is past 2026-03-02T02:00:00Z" in printed
