"""The status of an export whose types cannot all be read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.tables.export.monitoring import ExportAlert
from penstock.tables.export.status import day_answers, export_status
from tests.support.export_root import MONDAY, filled
from tests.support.memory_log import MemoryLog


@pytest.mark.parametrize("export", ["format: parquet", "format: delta"])
def test_a_type_whose_log_cannot_be_opened_is_reported_and_hides_no_other(tmp_path: Path, export: str) -> None:
    root = filled(tmp_path, export=export)
    log = root.lake / ("_penstock/shop/types/order" if root.logs.is_plain else "order") / "_delta_log"
    log.rename(log.with_name("away"))
    log.write_text("in the way")
    status = export_status(root.job, lambda _: MemoryLog(), time.time)
    alerts = [alert.text for alert in status.alerts if alert.kind is ExportAlert.TYPE_LAGGING]
    assert len(alerts) == 1
    assert alerts[0].startswith("type order cannot be read: ")
    types = {values["type"]: values["rows"] for values in status.sections[0].values}
    assert types == {"click": 24, "order": 0}
    [answer] = day_answers(root.job, MONDAY, ["order"])
    assert not answer.complete, "late rows may have come"
    assert answer.reason.startswith("the log of the type cannot be read")
    [answer] = day_answers(root.job, MONDAY, ["click"])
    assert answer.complete
