"""`penstock windows` on a job that has run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.errors import UserError
from tests.scenarios.rollup.rollups import START, Rollup, point
from tests.support.lake import Lake


def invoke(rollup: Rollup, *options: str) -> str:
    assert rollup.job
    result = CliRunner().invoke(app, ["windows", str(rollup.folder / "job.yaml"), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def rollup(tmp_path: Path) -> Rollup:
    """The first minute is closed."""
    made = Rollup(tmp_path, clock=START + 200, decode="{format: telegraf, names: raw}")
    made.send(0, point(START, 2.0), point(START + 65, 4.0), point(START + 75, 0.5, host="[b]"))
    made.send(1, point(START + 75, 3.0))
    made.run()
    return made


def test_open_windows_are_shown_with_their_values(rollup: Rollup) -> None:
    heading, *lines = [line.split() for line in invoke(rollup).splitlines()]
    assert heading == ["metric", "tags", "interval", "start", "count", "sum", "min", "max"]
    assert lines == [
        ["cpu.load", "host=[b]", "1m", "2026-02-02", "02:41:00Z", "1", "0.5", "0.5", "0.5"],
        ["cpu.load", "host=[b]", "10m", "2026-02-02", "02:40:00Z", "1", "0.5", "0.5", "0.5"],
        ["cpu.load", "host=a", "1m", "2026-02-02", "02:41:00Z", "2", "7.0", "3.0", "4.0"],
        ["cpu.load", "host=a", "10m", "2026-02-02", "02:40:00Z", "3", "9.0", "2.0", "4.0"],
    ]


def test_what_the_limit_leaves_out_is_counted(rollup: Rollup) -> None:
    assert invoke(rollup, "--limit", "1").splitlines()[-1].startswith("3 more open windows")
    assert invoke(rollup, "--metric", "memory") == "no open windows\n"


def test_json_has_the_same_windows(rollup: Rollup) -> None:
    told = json.loads(invoke(rollup, "--json", "--interval", "10m", "--limit", "1", "--metric", "cpu.load"))
    assert told == {
        "job": "rollups",
        "total": 2,
        "windows": [
            {
                "metric": "cpu.load",
                "tags": {"host": "[b]"},
                "interval": "10m",
                "window_start": "2026-02-02T02:40:00Z",
                "window_end": "2026-02-02T02:50:00Z",
                "count": 1,
                "sum": 0.5,
                "min": 0.5,
                "max": 0.5,
            }
        ],
    }


def test_a_job_whose_table_has_no_windows_is_refused(tmp_path: Path) -> None:
    job = Lake(str(tmp_path / "table")).job_file(tmp_path)
    result = CliRunner().invoke(app, ["windows", job])
    assert isinstance(result.exception, UserError)
    assert "has no windows" in result.exception.primary
