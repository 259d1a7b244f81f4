"""`penstock load` as a person meets it, before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.cli.load import _option
from penstock.errors import UserError

JOB = """\
job: devices
log: {{kafka: {{bootstrap: "nowhere:9092", topics: [events]}}}}
decode: json
schema: {{device: string, number: long}}
table: {{{table}: {{path: ./table{keys}}}}}
"""


@pytest.mark.parametrize(
    ("table", "arguments", "words"),
    [
        ("keyed", (), "nothing to load"),
        ("keyed", ("in", "--by-partition"), "--mode overwrite"),
        ("keyed", ("--format", "jdbc", "--option", "url"), "NAME=VALUE"),
        ("keyed", ("--format", "jdbc", "--option", "password=@nowhere"), "cannot be read"),
        ("delta", ("in",), "takes no loads"),
    ],
)
def test_what_cannot_be_loaded_is_told_at_once(
    tmp_path: Path, table: str, arguments: tuple[str, ...], words: str
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB.format(table=table, keys=", row_keys: [number]" if table == "keyed" else ""))
    done = CliRunner().invoke(app, ["load", str(job), *arguments])
    assert isinstance(done.exception, UserError)
    assert words in str(done.exception)


def test_options_of_sparks_reader_may_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("p=w\n")
    assert _option("url=jdbc:x?a=b") == ("url", "jdbc:x?a=b")
    assert _option(f"password=@{tmp_path / 'secret'}") == ("password", "p=w")
