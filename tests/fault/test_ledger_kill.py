"""Real processes of an export killed, stopped and woken at every step of the ledger: every record is there once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import FencedError
from penstock.failpoints import ENVIRONMENT_NAME
from penstock.lake.storage import open_storage
from penstock.tables.export.ledger.state import LedgerState
from tests.forked import Forked, has_stopped
from tests.jobs import KILLED
from tests.ledger_process import KINDS, made_up_log
from tests.pipes import wait_until
from tests.routed_parts import EVENTS, expected, open_table, visible

SECONDS_MAX = 180.0
SLICE = 12
"""Offsets: four of each type, two of each day, so six files."""
RENAMES_PER_SLICE = 6


@contextmanager
def exporter(root: Path, token: int, end: int, failpoint: str = "") -> Iterator[Forked]:
    arguments = [str(root), str(token), str(end), str(SLICE)]
    process = Forked("tests.ledger_process", arguments, {ENVIRONMENT_NAME: failpoint})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()


def export(root: Path, end: int, failpoint: str = "", token: int = 1) -> int:
    """One process to its end; its exit code."""
    with exporter(root, token, end, failpoint) as process:
        return process.wait(SECONDS_MAX)


def state_of(root: Path) -> LedgerState:
    return open_table(open_storage(str(root), {}), KINDS).state()


def assert_every_record_once(root: Path, end: int) -> None:
    assert visible(open_storage(str(root), {})) == expected(made_up_log(end))
    assert state_of(root).global_position(EVENTS) == end
    assert not [path for path in root.rglob("*.parquet") if "_penstock" in path.parts], "staged files are not .parquet"


def assert_none_twice(root: Path) -> None:
    found = visible(open_storage(str(root), {}))
    assert set(found.values()) <= {1}


def test_killed_at_every_step_in_turn(tmp_path: Path) -> None:
    """Each step kills one process; the next, killed at the next step, has to live with what it left."""
    renames = [f"renaming:kill:{visit}" for visit in range(1, RENAMES_PER_SLICE + 1)]
    end = 0
    for step in [
        "checked:kill",
        "checked:kill:2",
        "entry_written:kill",
        "entry_written:kill:3",
        *renames,
        "renamed:kill:3",
    ]:
        end += 2 * SLICE
        assert export(tmp_path, end, step) == KILLED, step
        assert_none_twice(tmp_path)
    assert export(tmp_path, end) == 0
    assert_every_record_once(tmp_path, end)


@pytest.mark.parametrize("step", ["entry_written:kill:20", "renamed:kill:20", "snapshot_written:kill"])
def test_killed_around_a_snapshot(tmp_path: Path, step: str) -> None:
    """Entry 20 is the first that leaves a snapshot; the slices begin with entry 3."""
    end = 20 * SLICE
    assert export(tmp_path, end, step) == KILLED
    assert state_of(tmp_path).number == 20
    assert export(tmp_path, end) == 0
    assert_every_record_once(tmp_path, end)


def test_two_on_one_partition_with_growing_tokens(tmp_path: Path) -> None:
    """Four start at once, each with a higher token: one ends the log, those that are overtaken leave."""
    end = 25 * SLICE
    assert export(tmp_path, SLICE) == 0
    with (
        exporter(tmp_path, 2, end) as one,
        exporter(tmp_path, 3, end) as two,
        exporter(tmp_path, 4, end) as three,
        exporter(tmp_path, 5, end) as four,
    ):
        processes = (one, two, three, four)
        codes = [process.wait(SECONDS_MAX) for process in processes]
        told = [process.stderr.read() for process in processes]
    assert codes[-1] == 0, told
    assert set(codes) <= {0, FencedError.exit_code}, told
    assert_every_record_once(tmp_path, end)
    assert state_of(tmp_path).of(EVENTS).token == 5


@pytest.mark.parametrize("step", ["checked:stop:3", "entry_written:stop:3", "renaming:stop:4", "renamed:stop:3"])
def test_stopped_in_the_middle_and_woken_after_another_took_over(tmp_path: Path, step: str) -> None:
    end = 6 * SLICE
    with exporter(tmp_path, 1, end, step) as sleeper:
        wait_until(lambda: has_stopped(sleeper))
        assert export(tmp_path, end - SLICE, token=2) == 0
        before = visible(open_storage(str(tmp_path), {}))
        sleeper.send_signal(signal.SIGCONT)
        assert sleeper.wait(SECONDS_MAX) == FencedError.exit_code, sleeper.stderr.read()
    assert visible(open_storage(str(tmp_path), {})) == before == expected(made_up_log(end - SLICE))
    assert export(tmp_path, end, token=2) == 0
    assert_every_record_once(tmp_path, end)
