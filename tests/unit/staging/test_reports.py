"""The reports of tasks add up, and a batch whose counts do not is never committed (I3)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import InvariantError
from penstock.flow.route.fanout_flow import FanoutFlow, RoutedSlice
from penstock.flow.write.manifest import Counts, Reason
from penstock.flow.write.report import UNROUTED, Share, TaskReport
from penstock.logs.log import EpochMark, Partition
from penstock.staging.reports import Gathered, check_conserved, gather
from tests.support.task_reports import sent
from tests.unit.flow.route.fanouts import KEY, TOPIC_ID, fanout_flow, type_flow

SCHEMA = pa.schema([("n", pa.int64())])
PARTITION = Partition(KEY[0], TOPIC_ID, KEY[1])


def gathered(**counts: Counts) -> Gathered:
    return gather([TaskReport({KEY: {name: Share(count) for name, count in counts.items()}})])


def flow(folder: Path) -> FanoutFlow:
    piece = RoutedSlice(TOPIC_ID, 100, 200, 1, {"taken": 100})
    return fanout_flow(folder, [type_flow("taken", SCHEMA), type_flow("behind", SCHEMA)], piece)


def test_reports_of_several_tasks_add_up_by_partition_and_type() -> None:
    other = ("orders", 4)
    reports = [
        TaskReport({KEY: {"a": Share(Counts(2, 2), first=107)}}, marks={KEY: (EpochMark(108, 1),)}),
        TaskReport({KEY: {"a": Share(Counts(3, 1, 2), first=101)}, other: {"a": Share(Counts(1, 1))}}, "the first"),
        TaskReport({KEY: {UNROUTED: Share(Counts(1, 0, 1))}}, "the second", (Reason("k", 1, "x"),)),
    ]
    result = gather([sent(report) for report in reports])
    assert result.shares[KEY] == {"a": Share(Counts(5, 3, 2), first=101), UNROUTED: Share(Counts(1, 0, 1))}
    assert (result.total, result.first_error) == (Counts(7, 4, 3), "the first")
    assert (result.mark_of(PARTITION), result.reasons) == (EpochMark(108, 1), (Reason("k", 1, "x"),))


def test_records_that_were_refused_come_back_with_their_reasons() -> None:
    report = TaskReport(refused={KEY: {2**40: "cannot name a partition"}})
    assert sent(report) == report


@pytest.mark.parametrize("name", ["taken", UNROUTED])
def test_counts_that_do_not_add_up_are_not_committed(tmp_path: Path, name: str) -> None:
    check_conserved(flow(tmp_path), gathered(**{name: Counts(read=5, written=4, filtered=1)}))
    with pytest.raises(InvariantError):
        check_conserved(flow(tmp_path), gathered(**{name: Counts(read=5, written=4)}))


def test_a_type_that_is_behind_or_failed_is_only_counted(tmp_path: Path) -> None:
    check_conserved(flow(tmp_path), gathered(behind=Counts(read=5)))
    check_conserved(flow(tmp_path), gather([TaskReport({KEY: {"taken": Share(Counts(read=5), failed="no space")}})]))
