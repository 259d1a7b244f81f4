"""Processes of one job that die, fail and follow each other: the table gets every record of the log once."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.events import BatchCommitted
from penstock.tables.registry import KINDS
from tests.contract.toy import ToyKind
from tests.scenarios.ingest.group_walk import Walk


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, ToyKind.name, ToyKind())


@pytest.mark.parametrize("seed", range(10))
def test_retention_deaths_and_errors_neither_stop_nor_double_the_work_of_a_group(seed: int, tmp_path: Path) -> None:
    walk = Walk(seed, tmp_path)
    walk.run()
    assert walk.counted(BatchCommitted) > 1
