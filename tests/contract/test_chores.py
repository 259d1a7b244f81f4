"""Chores of a running job: it merges its own small files, takes turns with batches, and stops if nothing moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock.engine import compaction
from penstock.engine.round import REPEATS_MAX, ChoreDone, Rounds
from penstock.environment import Environment
from penstock.errors import InvariantError, UserError
from penstock.events import BatchCommitted, BatchPlanned, CompactionFailed, Event, FilesCompacted
from penstock.lake.compaction import CompactionLimits
from penstock.tables.kind import SchemaChanged
from penstock.tables.registry import kind_of
from penstock.watch.verify import verify
from tests.contract.kinds import KINDS_TRIED, Subject, delta, replaced_policy

BATCHES = 24


class Recorded:
    """A listener that keeps its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: Event) -> None:
        self.events.append(event)

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "COMMITS_PER_CHECK", 8)
    monkeypatch.setattr(compaction, "EFFORT", CompactionLimits(alike_min=4))


def land(subject: Subject, batches: int = BATCHES) -> tuple[Rounds[Any], Recorded]:
    """One process lands so many batches of two records; what chores are due comes between."""
    recorded = Recorded()
    rounds = subject.open(Environment(listener=recorded))
    for number in range(batches):
        subject.fill(1)
        while recorded.count(BatchCommitted) == number:
            rounds.round(flush_now=True)
    for _ in range(batches):
        rounds.round(flush_now=True)
    return rounds, recorded


def files_of(table: Path) -> int:
    return len(DeltaTable(str(table)).file_uris())


@pytest.mark.parametrize("kind", ["delta", "rollup"])
def test_the_job_merges_its_own_small_files(tmp_path: Path, kind: str) -> None:
    subject = KINDS_TRIED[kind](tmp_path)
    _, recorded = land(subject)
    assert recorded.count(FilesCompacted)
    assert files_of(tmp_path / "table") < BATCHES
    assert subject.read() == subject.expected
    assert verify(subject.job, open_log=lambda job: subject.log.view(job.log)).ok


def test_small_files_stay_if_compaction_is_off(tmp_path: Path) -> None:
    subject = delta(tmp_path)
    subject.job = replaced_policy(subject.job, small_files="keep")
    land(subject)
    assert files_of(tmp_path / "table") == 2 * BATCHES


def test_a_table_that_cannot_be_compacted_does_not_stop_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UserError("the table has files with deletion vectors")

    subject = delta(tmp_path)
    monkeypatch.setattr(type(kind_of(subject.job)), "compact", refuse)
    _, recorded = land(subject)
    assert recorded.count(CompactionFailed)
    assert subject.read() == subject.expected


def test_a_batch_is_reported_as_planned_only_when_it_runs(tmp_path: Path) -> None:
    _, recorded = land(KINDS_TRIED["rollup"](tmp_path))
    assert recorded.count(BatchPlanned) == recorded.count(BatchCommitted) == BATCHES


def test_a_job_that_makes_no_progress_ends_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = delta(tmp_path)
    subject.fill()
    rounds = subject.open()
    monkeypatch.setattr(rounds.writer, "stage", lambda batch: SchemaChanged())
    for _ in range(REPEATS_MAX):
        assert rounds.round(flush_now=True) == ChoreDone("columns")
    with pytest.raises(InvariantError, match="makes no progress"):
        rounds.round(flush_now=True)
