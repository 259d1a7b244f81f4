"""Is day D complete? Answers with the partitions that hold the day back."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.reporting.model import DayAnswer, DayState
from penstock.tables.export.status import day_answers
from tests.support.export_root import MONDAY, ONE, TUESDAY, WEDNESDAY, ZERO, ExportRoot, job_file


@pytest.fixture
def root(tmp_path: Path) -> ExportRoot:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO, ONE)
    return root


def answer(root: ExportRoot, name: str = "order", day: str = MONDAY) -> DayAnswer:
    [answer] = day_answers(root.job, day, [name])
    return answer


def test_a_day_is_complete_once_the_watermark_of_every_partition_is_past_its_end(root: ExportRoot) -> None:
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)}, watermark=WEDNESDAY)
    result = answer(root)
    assert result.state is DayState.OPEN
    assert result.reason == "the watermark has to reach 2026-03-03T02:00:00Z: shop/1 is at no event time yet"
    root.write(ONE, 0, 5, {("order", MONDAY): range(5)}, watermark=MONDAY)
    assert "shop/1 is at 2026-03-02T12:00:00Z" in answer(root).reason
    root.write(ONE, 5, 6, {("order", TUESDAY): [5]}, watermark=WEDNESDAY)
    result = answer(root)
    assert result.complete
    assert result.reason == "the watermark 2026-03-04T12:00:00Z is past 2026-03-03T02:00:00Z"
    assert answer(root, day=TUESDAY).complete, "also a day without rows, or with few"
    assert answer(root, day=WEDNESDAY).state is DayState.OPEN


def test_a_type_that_lags_holds_only_its_own_day_back(root: ExportRoot) -> None:
    for partition in (ZERO, ONE):
        root.write(partition, 0, 5, {("order", MONDAY): range(4)}, watermark=MONDAY)
    root.write(ZERO, 5, 6, {}, watermark=WEDNESDAY)
    root.write(ONE, 5, 7, {("click", TUESDAY): [5]}, deferred={"order": [6]}, watermark=WEDNESDAY)
    result = answer(root)
    assert result.state is DayState.OPEN
    assert result.reason.endswith("shop/1 is at 2026-03-02T12:00:00Z")
    assert answer(root, "click").complete


def test_late_rows_reopen_a_day_until_the_watermark_is_as_far_past_them(root: ExportRoot) -> None:
    for partition in (ZERO, ONE):
        root.write(partition, 0, 5, {("order", MONDAY): range(5)}, watermark=WEDNESDAY)
    assert answer(root).complete
    root.write(ZERO, 5, 6, {("order", MONDAY): [5]})
    result = answer(root)
    assert result.state is DayState.REOPENED
    assert result.reason.startswith("the watermark has to reach 2026-03-04T14:00:00Z: ")
    assert result.as_json()["state"] == "reopened"


def test_before_the_first_position_no_day_is_complete(tmp_path: Path) -> None:
    result = answer(ExportRoot(job_file(tmp_path)))
    assert (result.state, result.reason) == (DayState.OPEN, "the job has no position yet")
