"""A kind of table defined in a test is run, killed, verified, compacted and shown, and `src` does not know it."""

from __future__ import annotations

import io
import signal
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.status import page
from penstock.environment import Environment
from penstock.failpoints import BATCH_STEPS, ENVIRONMENT_NAME
from penstock.tables.kind import CompactRequest
from penstock.tables.registry import KINDS, kind_of
from penstock.watch.status import status
from penstock.watch.verify import verify
from tests.contract.kinds import Subject
from tests.contract.toy import ToyKind, ToyTable
from tests.contract.toy_process import filled
from tests.support.forked import Forked
from tests.support.processes import EXIT_SECONDS_MAX

RUN_STEPS = [step for step in BATCH_STEPS if step not in ("writing", "quarantined")]
"""A toy has neither tasks nor a quarantine."""


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setitem(KINDS, ToyKind.name, ToyKind())
    return filled(tmp_path)


def killed(command: str, folder: Path, step: str) -> int:
    process = Forked("tests.contract.toy_process", [command, str(folder)], {ENVIRONMENT_NAME: f"{step}:kill"})
    return process.wait(EXIT_SECONDS_MAX)


@pytest.mark.parametrize("step", RUN_STEPS)
def test_a_process_killed_at_any_step_leaves_every_record_once(subject: Subject, tmp_path: Path, step: str) -> None:
    assert killed("run", tmp_path, step) == -signal.SIGKILL
    subject.run()
    assert subject.read() == subject.expected
    assert verify(subject.job, open_log=lambda job: subject.log.view(job.log)).ok


def test_a_compaction_killed_in_the_middle_shows_every_row_once(subject: Subject, tmp_path: Path) -> None:
    subject.run()
    assert killed("compact", tmp_path, "toy_merged") == -signal.SIGKILL
    assert subject.read() == subject.expected
    subject.fill(2)
    subject.run()
    kind_of(subject.job).compact(subject.job, CompactRequest(), Environment(), None)
    assert len(list(Path(subject.job.table.path).glob("*.json"))) == 1
    assert subject.read() == subject.expected


def test_damage_is_found_and_status_shows_the_lag(subject: Subject) -> None:
    subject.run()
    subject.fill(2)
    result = status(subject.job, open_log=lambda job: subject.log.view(job.log))
    assert {partition.lag_records for partition in result.partitions} == {2}
    printed = io.StringIO()
    Console(file=printed, width=200).print(page([result], verbose=True))
    assert f"files of the toy: {result.as_json()['files']}" in printed.getvalue()
    for item in Path(subject.job.table.path).glob("*.json"):
        item.write_text(item.read_text().replace('["events", 0, 3', '["events", 0, 4'))
    assert not verify(subject.job, open_log=lambda job: subject.log.view(job.log)).ok
    assert len(ToyTable(subject.job, Environment()).rows()) == 16
