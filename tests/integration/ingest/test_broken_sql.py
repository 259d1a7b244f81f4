from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock.errors import UserError
from tests.cases.broken_jobs import NAME, broken_jobs, good_file


def test_check_deep_reports_what_only_spark_finds(tmp_path: Path) -> None:
    jobs = {str(number): job for number, job in enumerate(broken_jobs("check --deep"))}
    for folder, job in jobs.items():
        (tmp_path / folder).mkdir()
        text = job.text(good_file()).replace("job: web", f"job: {folder}-web").replace("path: ", f"path: {folder}/")
        (tmp_path / folder / NAME).write_text(text, encoding="utf-8")
    check = [sys.executable, "-m", "penstock.cli", "check", *(f"{folder}/{NAME}" for folder in jobs)]
    assert subprocess.run(check, cwd=tmp_path, check=False, capture_output=True).returncode == 0
    deep = subprocess.run([*check, "--deep"], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert deep.returncode == UserError.exit_code
    for folder, job in jobs.items():
        assert f"{folder}/{job.line}" in deep.stdout
