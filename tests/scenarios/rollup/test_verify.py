"""What `verify` says of a rollup in the middle of something."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.proof.findings import Verdict
from tests.scenarios.rollup.rollups import START, Rollup, point


def test_records_that_a_commit_lists_for_quarantine_are_no_points_that_partials_lack(tmp_path: Path) -> None:
    """The process ended between its commit and the append to the quarantine."""
    rollup = Rollup(tmp_path)
    rollup.send(0, point(START), point(START + 365 * 86400))

    def crash(step: str) -> None:
        if step == "committed":
            raise ConnectionError(step)

    with pytest.raises(ConnectionError):
        rollup.run(reach=crash)
    verdicts = {each.name: each.verdict for each in rollup.verify(values=True).checks}
    assert Verdict.VIOLATED not in verdicts.values(), verdicts


def test_an_interval_that_was_left_out_for_a_while_is_no_interval_with_lost_points(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path)
    for intervals in ("[1m, 10m]", "[1m]", "[1m, 10m]"):
        rollup.windows_asked = intervals.strip("[]")
        for number in (0, 1):
            rollup.send(number, *(point(rollup.clock + each) for each in range(100)))
        rollup.clock += 100
        rollup.run()
        rollup.clock += 3600
        rollup.run()
    verdicts = {each.name: each.verdict for each in rollup.verify().checks}
    assert Verdict.VIOLATED not in verdicts.values(), verdicts
