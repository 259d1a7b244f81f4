"""`penstock console`: it starts without Spark, and refuses what would show jobs to everybody."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app

JOB = """\
job: web
log: {kafka: {bootstrap: "127.0.0.1:1", topics: [web]}}
decode: json
schema: {id: long}
table: {delta: {path: ./lake}}
"""


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
        with urllib.request.urlopen(facts["url"]) as answer:
            page = answer.read().decode()
        process.send_signal(signal.SIGTERM)
        errors = process.stderr.read()
    assert facts["jobs"] == 1 and 'href="/jobs/web"' in page
    assert "Traceback" not in errors and process.returncode in (0, -signal.SIGTERM)


def test_the_console_needs_no_spark_to_start() -> None:
    """Readings of jobs import it, in a thread of their own."""
    program = (
        "import sys, penstock.cli.console, penstock.console.server; "
        "assert not {'pyspark', 'deltalake', 'polars', 'pandas', 'confluent_kafka'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_package_of_the_console_is_reported_with_the_extra() -> None:
    program = "import sys; sys.modules['starlette'] = None; import penstock.console"
    result = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert "install penstock[console]" in result.stderr


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
