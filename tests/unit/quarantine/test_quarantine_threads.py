"""A listing of the quarantine leaves no thread of Arrow behind: one that still winds down aborts a short command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_LISTING = """
import os, sys
from datetime import UTC, datetime
import pyarrow as pa
from deltalake import write_deltalake
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.opening import open_table
from penstock.quarantine.rows import find_rows, list_rows

def threads():
    # Those of the Delta library have names of their own.
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    return sum(not name.startswith(("tokio", "jemalloc")) for name in names)

row = {"job": "web", "topic": "web", "topic_id": "id", "partition": 0, "offset": 7, "error": "bad", "value": b"x"}
full = {field.name: row.get(field.name) for field in QUARANTINE_SCHEMA} | {"quarantined_at": datetime.now(UTC)}
write_deltalake(sys.argv[1], pa.Table.from_pylist([full] * 1000, schema=QUARANTINE_SCHEMA))
table = open_table(TablePlace(path=sys.argv[1]), "web")
before = threads()
assert list_rows(table, 20).rows == 1000
assert len(find_rows(table, "web", 0, 7)) == 1000
assert threads() == before, f"{threads() - before} threads more"
"""


def test_a_listing_leaves_no_thread_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LISTING, str(tmp_path / "table")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
