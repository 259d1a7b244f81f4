"""A process that dies between the tables of its types and the ledger, and a job file changed before the next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.job.spec import job_of
from penstock.tables.export.delta_types import DeltaTypes
from penstock.tables.export.spec import ExportSpec
from penstock.tables.registry import load_job
from tests.export_root import MONDAY, ZERO, ExportRoot, filled
from tests.pipes import CrashError, once_at

ROWS = {("order", MONDAY): [34, 35], ("click", MONDAY): [36]}


def _die() -> None:
    raise CrashError


@pytest.fixture
def root(tmp_path: Path) -> ExportRoot:
    root = filled(tmp_path, export="format: delta")
    root.table = root.open(Environment(sleep=lambda _: None, reach=once_at("type_landed", _die)))
    with pytest.raises(CrashError):
        root.write(ZERO, 34, 37, ROWS)
    return root


def ahead(root: ExportRoot, path: Path) -> int:
    job = load_job(path)
    return DeltaTypes(job_of(job, ExportSpec), Environment()).ahead_of(ZERO, "click", 34)


def test_l8_the_next_process_takes_each_type_from_where_its_table_is(root: ExportRoot) -> None:
    assert ahead(root, root.job_path) == 37


def test_l8_a_job_file_that_was_changed_in_between_is_refused_until_the_batch_is_complete(root: ExportRoot) -> None:
    text = root.job_path.read_text()
    changed = root.job_path.with_name("changed.yaml")
    changed.write_text(text + "on: {new_column: quarantine}\n")
    with pytest.raises(UserError, match="changed after a process died"):
        ahead(root, changed)
    changed.write_text(text + "limits: {open_writers: 7}\n")
    assert ahead(root, changed) == 37, "what decides nothing may be changed"
