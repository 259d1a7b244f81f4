"""A copy of a database's table, from the envelopes of Debezium: the job file is the one of the documentation."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from penstock.engine.round import open_rounds
from penstock.job.spec import JobSpec
from penstock.proof.subject import Sample
from penstock.tables.registry import load_job
from penstock.watch.verify import verify
from tests.scenarios.local_spark import local_session
from tests.support.change_data import ChangeData, documented_job
from tests.support.keyed_tables import ONE, ZERO, finish
from tests.support.memory_log import MemoryLog, MemoryRecord
from tests.support.quarantine_url import quarantine_url

PARTITIONS = (ZERO, ONE)


def written(folder: Path, wrapped: bool) -> JobSpec:
    path = folder / "customers.yaml"
    path.write_text(documented_job("nowhere:9092", "events", str(folder / "customers"), wrapped=wrapped))
    return load_job(path)


def run(job: JobSpec, log: MemoryLog) -> None:
    finish(open_rounds(job, local_session(), None, None, lambda job: log.view(job.log)))


def rows_in(folder: Path) -> dict[int, dict[str, Any]]:
    frame = pl.read_delta(str(folder / "customers"))
    assert not {"before", "after", "source", "payload"} & set(frame.columns)
    result = {row["id"]: row for row in frame.select("id", "name", "email").iter_rows(named=True)}
    assert len(result) == len(frame)
    return result


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_the_table_equals_the_source_table_of_the_change_data(tmp_path: Path, seed: int, wrapped: bool) -> None:
    """Creates, updates, deletes with tombstones, changed keys, and snapshots that come late and out of order."""
    job, log = written(tmp_path, wrapped), MemoryLog({ZERO: {}, ONE: {}})
    database = ChangeData(random.Random(seed), wrapped=wrapped)
    for _ in range(3):
        for key, value in database.changes(60):
            to = PARTITIONS[int(re.sub(r"\D", "", key.decode())) % 2]
            log.append(to, MemoryRecord(value, key, at=1_770_000_000.0))
        run(job, log)
        assert rows_in(tmp_path) == database.rows
    assert database.late_reads and database.tombstones
    assert verify(job, values=Sample(None), open_log=lambda job: log.view(job.log)).ok


def test_a_truncate_is_quarantined(tmp_path: Path) -> None:
    job, log = written(tmp_path, wrapped=False), MemoryLog({ZERO: {}})
    create = {"before": None, "after": {"id": 1, "name": "n"}, "op": "c", "source": {"lsn": 1, "txId": 7}}
    truncate = {"before": None, "after": None, "op": "t", "source": {"lsn": 2}}
    log.append(ZERO, *(MemoryRecord(json.dumps(item).encode(), at=1_770_000_000.0) for item in (create, truncate)))
    run(job, log)
    assert list(rows_in(tmp_path)) == [1]
    [error] = pl.read_delta(quarantine_url(tmp_path / "customers", "customers"))["error"].to_list()
    assert "row key" in error


def test_dropped_fields_add_no_columns(tmp_path: Path) -> None:
    """Also with added columns: new members of dropped fields add no columns."""
    text = documented_job("nowhere:9092", "events", str(tmp_path / "customers"), wrapped=False)
    path = tmp_path / "customers.yaml"
    path.write_text(text.replace("new_column: ignore", "new_column: add"))
    job, log = load_job(path), MemoryLog({ZERO: {}})
    create = {"after": {"id": 1, "name": "n", "age": 7}, "op": "c", "source": {"lsn": 1, "txId": 7}, "seen": True}
    log.append(ZERO, MemoryRecord(json.dumps(create).encode(), at=1_770_000_000.0))
    run(job, log)
    frame = pl.read_delta(str(tmp_path / "customers"))
    assert set(frame.columns) == {
        "id",
        "lsn",
        "name",
        "email",
        "op",
        "seen",
        "_sequence",
        "_tiebreak",
        "_bucket",
    }
