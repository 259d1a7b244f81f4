"""The files in deploy/: their job files load, their commands exist, and their time limits fit those of a job."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.errors import FencedError, InvariantError, TransientError, UserError
from penstock.tables.registry import load_job
from tests.support.pages import ROOT, resolve_command

DEPLOY = ROOT / "deploy"
PORT = 9464


def containerfile() -> list[tuple[str, str]]:
    """The instructions, with their arguments."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", "")
    pairs = (line.partition(" ") for line in text.splitlines() if line)
    return [(name, rest) for name, _, rest in pairs]


def loaded(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KAFKA_BROKERS", "kafka:9092")
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    return load_job(folder / "job.yaml")


def test_the_image_copies_what_exists_and_runs_a_command_that_exists_without_root() -> None:
    instructions = containerfile()
    passed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    for name, rest in instructions:
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert any(fnmatch(source, item) for item in passed), f".dockerignore hides {source}"
    last = dict(instructions)
    assert last["USER"] not in ("", "0", "root")
    words = json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"])
    assert words[:3] == ["tini", "--", "penstock"]
    command, following, _ = resolve_command(words[3:])
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in following if word.startswith("-")} <= options
    assert f"0.0.0.0:{PORT}" in words and f"127.0.0.1:{PORT}/healthz" in last["HEALTHCHECK"]
    assert last["EXPOSE"] == str(PORT)
    # Spark creates a folder for artifacts where it is started.
    assert last["WORKDIR"] == "/tmp"
    assert unit("WorkingDirectory") == f"/var/lib/{unit('StateDirectory')}"


def test_every_way_to_stop_gives_a_job_longer_than_its_own_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))
    values = yaml.safe_load((DEPLOY / "helm" / "penstock" / "values.yaml").read_text(encoding="utf-8"))
    composed = (DEPLOY / "compose" / "job.yaml").read_text(encoding="utf-8")
    for job in (loaded(composed, tmp_path, monkeypatch), loaded(values["job"], tmp_path, monkeypatch)):
        limit = job.limits.shutdown_seconds_max
        assert int(compose["services"]["penstock"]["stop_grace_period"].removesuffix("s")) > limit
        assert values["stopSeconds"] > limit
        assert int(unit("TimeoutStopSec")) > limit


def test_the_unit_stops_the_job_alone_and_restarts_only_what_a_restart_can_cure() -> None:
    assert unit("KillMode") == "mixed"
    final = {int(code) for code in unit("RestartPreventExitStatus").split()}
    assert final == {error.exit_code for error in (UserError, FencedError, InvariantError)}
    assert TransientError.exit_code not in final


def unit(key: str) -> str:
    """The last value of a key of the unit."""
    text = (DEPLOY / "penstock@.service").read_text(encoding="utf-8")
    [*_, last] = re.finditer(rf"^{key}=(.*)$", text, re.MULTILINE)
    return last[1]
