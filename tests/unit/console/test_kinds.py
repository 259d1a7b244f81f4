"""What the page of a job shows of its log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock.console.kinds import backlog_of, sections_of
from penstock.logs.log import Partition
from penstock.logs.wal.log import WalLogSpec
from tests.support.console import console, watched


def test_the_backlog_of_a_wal_is_added_up_by_source(tmp_path: Path) -> None:
    job = watched(tmp_path, lags=(2, 3))
    assert job.status is not None
    assert job.spec is not None
    assert sections_of(job) == []
    other = replace(job.status.partitions[0], partition=Partition("sensors", "id", 0), end=None, lag_seconds=None)
    [orders, sensors] = backlog_of([*job.status.partitions, other]).rows
    assert orders[:2] == ("orders", "5")
    assert "–" not in orders
    assert sensors == ("sensors", "–", "–", "–")
    job.spec = replace(job.spec, log=WalLogSpec("http://127.0.0.1:1", topics=("orders",)))
    with console(tmp_path, job) as client:
        assert "Wal backlog" in client.get("/jobs/orders").text
