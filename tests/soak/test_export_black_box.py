"""Exports as a black box: whatever a random walk does to them, another engine finds every record once in its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.tables.registry import load_job
from penstock.watch.verify import Verdict, verify
from tests.soak.box_walk import Maintain, walk
from tests.soak.box_world import World

SEED = int(os.environ.get("PENSTOCK_SEED", "11"))
LENGTH = int(os.environ.get("PENSTOCK_SOAK_ACTIONS", "24"))
ROWS = int(os.environ.get("PENSTOCK_SOAK_ROWS", "40000"))


def test_a_random_walk_of_kills_breaks_and_losses_leaves_every_record_once_in_its_type_and_day(
    tmp_path: Path, bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`PENSTOCK_SEED` draws another walk, `PENSTOCK_SOAK_ACTIONS` and `PENSTOCK_SOAK_ROWS` set its length."""

    def log(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)

    log(f"\nPENSTOCK_SEED={SEED} PENSTOCK_SOAK_ACTIONS={LENGTH} PENSTOCK_SOAK_ROWS={ROWS}")
    world = World(tmp_path, bootstrap, log)
    try:
        world.open()
        for action in walk(SEED, LENGTH, ROWS):
            world.act(action)
        world.stop()
        for command in (("compact", "--all-days"), ("vacuum",)):
            world.maintain(Maintain(command, ""))
        world.compare()
        world.compare_quarantine()
        report = verify(load_job(world.job))
        unproven = {check.name for check in report.checks if check.verdict is not Verdict.PROVEN}
        # Bad records that were read before the logs were lost.
        assert unproven <= {"former quarantine"}, report.as_json()
        log(f"{len(world.sent)} records, ends of processes: {dict(world.ended)}")
    finally:
        world.close()
