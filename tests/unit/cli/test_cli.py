"""The command line for people and scripts: error texts, exit codes, JSON, and a quiet import."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli import main
from penstock.cli.app import LazyVerb, app
from penstock.errors import (
    FencedError,
    InvariantError,
    OutcomeUnknownError,
    PenstockError,
    TransientError,
    UserError,
)

BROKEN = """\
job: Web
log:
  kafka: {bootstrap: "localhost:9092", topics: [web]}
decode: json
schema: {id: lng}
table:
  delta: {path: /lake/web}
"""


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    """The real `main` with an additional command that raises the error in the list."""
    raised: list[BaseException] = []

    def fail() -> None:
        raise raised[0]

    app.command("fail")(fail)
    monkeypatch.setattr(sys, "argv", ["penstock", "fail"])
    yield raised
    app.registered_commands.pop()


def exit_code() -> object:
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize(
    ("kind", "code"),
    [(UserError, 2), (FencedError, 4), (InvariantError, 70), (TransientError, 75), (OutcomeUnknownError, 75)],
)
def test_an_error_ends_the_command_with_its_exit_code_detail_and_hint(
    kind: type[PenstockError], code: int, failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(kind("the topic was deleted", detail="web has no id", hint="create it"))
    assert exit_code() == code
    printed = capsys.readouterr()
    assert printed.err == "the topic was deleted\n  detail: web has no id\n  hint: create it\n"
    assert printed.out == ""


def test_exit_code_70_always_comes_with_a_hint(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(InvariantError("two slices hold one offset"))
    assert exit_code() == 70
    assert "penstock verify" in capsys.readouterr().err


def test_a_subclass_of_an_error_has_the_exit_code_of_its_base(failing: list[BaseException]) -> None:
    class SpecialError(TransientError):
        """Some module's own."""

    failing.append(SpecialError("later"))
    assert exit_code() == 75


def test_an_interrupted_command_prints_no_error(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(KeyboardInterrupt())
    assert exit_code() == 130
    assert "Traceback" not in capsys.readouterr().err


def test_an_unexpected_exception_is_not_hidden(failing: list[BaseException]) -> None:
    failing.append(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        main()


@pytest.mark.parametrize(
    "command",
    [
        ["check"],
        ["run"],
        ["status"],
        ["verify"],
        ["compact"],
        ["vacuum"],
        ["quarantine", "list"],
        ["quarantine", "replay"],
    ],
)
def test_every_command_reports_the_faults_of_a_broken_job_file_with_exit_code_2(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(BROKEN)
    monkeypatch.setattr(sys, "argv", ["penstock", *command, str(file)])
    assert exit_code() == 2
    printed = capsys.readouterr()
    output = printed.out + printed.err
    assert "job.yaml:1:6 job: invalid job name 'Web'" in output
    assert "job.yaml:5:14 schema.id: unknown type 'lng'; did you mean long?" in output


def test_check_prints_its_faults_as_json(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(BROKEN)
    result = CliRunner().invoke(app, ["check", str(file), "--json"])
    assert result.exit_code == 2
    [output] = json.loads(result.stdout)
    assert (output["ok"], [fault["key"] for fault in output["faults"]]) == (False, ["job", "schema.id"])


def test_every_verb_has_a_sentence_of_help_and_json() -> None:
    result = dict(verbs(typer.main.get_command(app), ()))
    assert {" ".join(name) for name in result} >= {"run", "status", "verify", "quarantine list", "broker status"}
    for name, command in result.items():
        assert command.help, name
        assert "--json" in {option for param in command.params for option in param.opts}, name


def verbs(command: Any, name: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command.load() if isinstance(command, LazyVerb) else command
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for key, inner in below.items():
        yield from verbs(inner, (*name, key))


def test_help_and_version_import_no_engine() -> None:
    for asked in ("--help", "--version"):
        show = f"import sys; from penstock.cli.app import app; app(['{asked}'], standalone_mode=False); "
        heavy = "print({'numpy', 'pandas', 'polars', 'pyarrow', 'pyspark', 'confluent_kafka'} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-c", show + heavy], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "set()"


def test_a_misspelt_verb_is_answered_with_the_closest_one() -> None:
    result = CliRunner().invoke(app, ["chek", "job.yaml"])
    assert result.exit_code == 2
    assert "Did you mean 'check'?" in result.output


_IMPORT = """
import json, os, sys, threading

class Watched(dict):
    read = set()
    def __getitem__(self, key): self.read.add(key); return super().__getitem__(key)
    def get(self, key, default=None): self.read.add(key); return super().get(key, default)

environment = Watched(os.environ)
os.environ = environment
import penstock, penstock.plan, penstock.errors
heavy = {"pyspark", "confluent_kafka", "deltalake", "obstore"} & sys.modules.keys()
import penstock.claims, penstock.cli.run, penstock.engine.process, penstock.watch.verify, penstock.embedded.demo
slow = "pandas.core" in sys.modules
ours = sorted(name for name in environment.read if name.startswith(("PENSTOCK", "SPARK", "KAFKA", "JAVA", "XDG")))
print(json.dumps({
    "heavy": sorted(heavy),
    "pandas": slow,
    "threads": [thread.name for thread in threading.enumerate()],
    "children": open(f"/proc/self/task/{os.getpid()}/children").read().split(),
    "read": ours,
    "session": "pyspark" in sys.modules and sys.modules["pyspark"].SparkContext._active_spark_context is not None,
}))
"""


def test_importing_starts_nothing_and_the_pure_parts_need_neither_spark_nor_kafka() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {
        "heavy": [],
        "pandas": False,
        "threads": ["MainThread"],
        "children": [],
        "read": [],
        "session": False,
    }
