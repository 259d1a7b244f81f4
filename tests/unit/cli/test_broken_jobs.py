from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.errors import UserError
from tests.cases.broken_jobs import NAME, BrokenJob, broken_jobs, good_file


def test_the_file_without_a_mistake_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(NAME).write_text(good_file(), encoding="utf-8")
    result = CliRunner().invoke(app, ["check", NAME])
    assert (result.exit_code, result.stdout) == (0, f"ok {NAME} (job web: topics web -> delta /lake/web)\n")


@pytest.mark.parametrize("job", broken_jobs("check"), ids=lambda job: job.new.strip()[:40])
def test_check_reports_a_mistake_in_one_line(job: BrokenJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(NAME).write_text(job.text(good_file()), encoding="utf-8")
    result = CliRunner().invoke(app, ["check", NAME])
    assert result.exit_code == UserError.exit_code
    assert result.stdout.splitlines()[0] == job.line
