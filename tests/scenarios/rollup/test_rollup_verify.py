"""`verify` of a rollup with unfinished work."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.proof.findings import Verdict
from tests.scenarios.rollup.rollups import START, Rollup, point


def test_quarantined_records_are_not_missing_points(tmp_path: Path) -> None:
    """The process ended between its commit and the append to the quarantine."""
    rollup = Rollup(tmp_path)
    rollup.send(0, point(START), point(START + 365 * 86400))

    def crash(step: str) -> None:
        if step == "committed":
            raise ConnectionError(step)

    with pytest.raises(ConnectionError):
        rollup.run(at_step=crash)
    verdicts = {check.name: check.verdict for check in rollup.verify(values=True).checks}
    assert Verdict.VIOLATED not in verdicts.values(), verdicts
