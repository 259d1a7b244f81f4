"""`penstock load` before Spark is started."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.errors import UserError

JOB = """\
job: devices
log: {kafka: {bootstrap: "nowhere:9092", topics: [events]}}
decode: json
schema: {device: string, number: long}
table: {delta: {path: ./table}}
"""


def test_load_is_refused_for_a_table_without_keys(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    done = CliRunner().invoke(app, ["load", str(job), "in"])
    assert isinstance(done.exception, UserError)
    assert "cannot be loaded into devices" in str(done.exception)
