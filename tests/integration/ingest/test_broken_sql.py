from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import UserError
from tests.cases.broken_jobs import NAME, BrokenJob, broken_jobs, good_file


@pytest.mark.parametrize("job", broken_jobs("check --deep"), ids=lambda job: job.new[:40])
def test_check_deep_reports_what_only_spark_finds(job: BrokenJob, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(job.text(good_file()), encoding="utf-8")
    check = [sys.executable, "-m", "penstock.cli", "check", NAME]
    assert subprocess.run(check, cwd=tmp_path, check=False, capture_output=True).returncode == 0
    deep = subprocess.run([*check, "--deep"], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert deep.returncode == UserError.exit_code
    assert deep.stdout.startswith(job.line)
