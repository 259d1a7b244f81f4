"""`penstock compact` and `penstock vacuum` on a job file."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.maintenance import compact, vacuum
from penstock.errors import UserError
from penstock.quarantine.table import Quarantine
from tests.support.lake import JOB, ZERO, Lake, commit, offsets

app = typer.Typer()
app.command()(compact)
app.command()(vacuum)


@pytest.fixture
def local(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "table"))


def test_compact_prints_a_report(local: Lake, tmp_path: Path) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    local.append(table, ZERO, 10, 20)
    job = local.job_file(tmp_path)
    assert CliRunner().invoke(app, ["compact", job, "--target-size", "1B"]).stdout == "nothing to compact\n"
    report = json.loads(CliRunner().invoke(app, ["compact", job, "--json"]).stdout)
    assert (report["job"], report["files_removed"], report["files_added"], report["rows"]) == (JOB, 2, 1, 20)
    assert local.rows() == offsets(ZERO, 0, 20)


def test_compact_refuses_an_invalid_size_and_a_missing_table(local: Lake, tmp_path: Path) -> None:
    job = local.job_file(tmp_path)
    for size in ("many", "0"):
        assert isinstance(CliRunner().invoke(app, ["compact", job, "--target-size", size]).exception, UserError)
    assert isinstance(CliRunner().invoke(app, ["compact", job]).exception, UserError)


def test_vacuum_reports_deleted_and_kept_files(local: Lake, tmp_path: Path) -> None:
    table = local.start(ZERO)
    orphan = local.stage(ZERO, 0, 10)
    bad = local.stage_bad(ZERO, 0, 10)
    commit(table, bad)
    Quarantine(local.job, table, table.environment).append([bad])
    bad_orphan = local.stage_bad(ZERO, 0, 10)
    job = local.job_file(tmp_path)
    dry = CliRunner().invoke(app, ["vacuum", job, "--dry-run"]).stdout
    assert "2 files would go" in dry
    assert table.storage().exists(orphan.files[0].path)
    report = json.loads(CliRunner().invoke(app, ["vacuum", job, "--json"]).stdout)
    assert [(item["table"], item["path"]) for item in report["deleted"]] == [
        (local.path, orphan.files[0].path),
        (local.quarantine(), bad_orphan.quarantine_files[0].path),
    ]
    assert report["kept"] == {"active": 1}
    assert not table.storage().exists(orphan.files[0].path)
    assert sorted(pl.read_delta(local.quarantine())["offset"]) == list(range(10))


def test_vacuum_needs_no_quarantine_and_reports_a_missing_table(local: Lake, tmp_path: Path) -> None:
    job = local.job_file(tmp_path)
    assert isinstance(CliRunner().invoke(app, ["vacuum", job]).exception, UserError)
    local.start(ZERO)
    assert CliRunner().invoke(app, ["vacuum", job]).stdout == "0 files deleted, 0 bytes\n"
