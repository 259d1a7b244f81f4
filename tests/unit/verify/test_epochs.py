"""RULES P3: `verify` compares leader epochs to find out whether the log still has what was read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock.logs.log import EpochMark
from penstock.watch.verify import Verdict, ViolationKind
from tests.support.small_table import Load, SmallTable
from tests.unit.verify.lakes import Kind, Lake, made

PLAIN = Kind(places=True, compacted=False, recreated=False)


def read_in_epoch(folder: Path, epoch: int) -> Lake:
    """A table that has read partition 1 up to its end, the last record in this epoch."""
    lake = made(folder, PLAIN)
    one = lake.partitions[1]
    SmallTable(lake.job).commit(one, Load(8, 10, range(8, 10)), mark=EpochMark(10, epoch))
    return lake


def of_log(lake: Lake, ends: dict[int, int] | None, deep: bool = True) -> tuple[Verdict, ViolationKind | None]:
    """The verdict and violation of the check `log`, if the epochs of partition 1 end there."""
    epochs = {} if ends is None else {lake.partitions[1]: ends}
    report = replace(lake, log=replace(lake.log, epochs=epochs)).verify(deep=deep)
    [check] = [item for item in report.checks if item.name == "log"]
    assert report.verdict is check.verdict, "no other check finds it"
    return check.verdict, None if check.violation is None else check.violation.kind


def test_a_log_truncated_and_grown_again_is_a_violation_even_in_a_shallow_verification(tmp_path: Path) -> None:
    lake = read_in_epoch(tmp_path, 4)
    for deep in (True, False):
        assert of_log(lake, {4: 10}, deep) == (Verdict.PROVEN, None)
        assert of_log(lake, {4: 10, 5: 12}, deep) == (Verdict.PROVEN, None)
        assert of_log(lake, {4: 9, 5: 12}, deep) == (Verdict.VIOLATED, ViolationKind.NOT_IN_LOG)
        assert of_log(lake, {0: 12}, deep) == (Verdict.VIOLATED, ViolationKind.NOT_IN_LOG)


def test_a_log_without_epochs_is_not_proven(tmp_path: Path) -> None:
    assert of_log(read_in_epoch(tmp_path, 4), None) == (Verdict.NOT_PROVEN, None)


def test_a_table_without_epochs_needs_none_of_the_log(tmp_path: Path) -> None:
    assert of_log(made(tmp_path, PLAIN), None) == (Verdict.PROVEN, None)
