"""`penstock console`: it starts without Spark, and refuses what would show jobs to everybody."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.cli.run import console_of_run
from penstock.events import BatchCommitted, Mirrored
from penstock.logs.log import Partition
from tests.support.small_table import SmallTable, small_job
from tests.support.waiting import wait_until

JOB = """\
job: web
log: {kafka: {bootstrap: "127.0.0.1:1", topics: [web]}}
decode: json
schema: {id: long}
table: {delta: {path: ./lake}}
"""


STEP_TIME = re.compile(r'class="time">([^<]+)<')


def read(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["console", *arguments])
    assert result.exit_code != 0
    return str(result.exception)


def test_the_console_serves_the_jobs_of_its_folder_until_a_signal(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(JOB)
    (tmp_path / "compose.yaml").write_text("services: {}")
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "console",
        "--listen",
        "127.0.0.1:0",
        "--json",
        "--history",
        "h.db",
    ]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        facts = json.loads(process.stdout.readline())
        page = read(facts["url"])
        process.send_signal(signal.SIGTERM)
        errors = process.stderr.read()
    assert facts["jobs"] == 1 and 'href="/jobs/web"' in page
    assert "Traceback" not in errors and process.returncode in (0, -signal.SIGTERM)


def test_the_console_needs_no_spark_to_start() -> None:
    """Readings of jobs import it, in a thread of their own."""
    program = (
        "import sys, penstock.cli.console, penstock.console.server; "
        "assert not {'pyspark', 'deltalake', 'polars', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_package_of_the_console_is_reported_with_the_extra() -> None:
    program = "import sys; sys.modules['starlette'] = None; import penstock.console"
    result = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert "install penstock[console]" in result.stderr


def test_the_console_of_a_run_shows_how_long_commits_and_mirroring_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commits in the table do not record it: these times come from the events of the run."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    table = SmallTable(small_job("127.0.0.1:1", "orders", tmp_path))
    table.start(Partition("orders", "id", 0))
    with console_of_run([table.job], 0) as listeners:
        url = capsys.readouterr().err.partition("console at ")[2].strip()
        listeners["orders"].event(BatchCommitted("b", 1, steps={"plan": 0.2, "commit": 0.321}))
        listeners["orders"].event(Mirrored(0.045))
        wait_until(lambda: STEP_TIME.search(read(f"{url}jobs/orders")) is not None)
        assert STEP_TIME.findall(read(f"{url}jobs/orders")) == ["200ms", "321ms", "45ms"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--listen", "0.0.0.0:7080"], "every computer that reaches 0.0.0.0 could see the jobs"),
        (["--listen", "0.0.0.0:7080", "--operate"], "every computer"),
        (["--listen", "nowhere"], "invalid address"),
        (["--tls-key", "key.pem"], "need each other"),
        (["--token-file", "missing"], "cannot be read"),
        (["--token-file", "short"], "fewer than 16 characters"),
        ([], "this folder has no job files"),
        (["missing.yaml"], "is not a file"),
    ],
)
def test_what_would_show_jobs_to_everybody_and_what_is_missing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("olga:secret\n")
    assert reason in refusal(*arguments)
