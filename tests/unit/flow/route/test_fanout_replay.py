"""A task of a replay: records out of quarantine go to their types and days, what is still bad stays where it is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import RoutedSlice
from penstock.flow.write.names import parse_replayed_name
from penstock.flow.write.report import UNROUTED, TaskReport, decode_report
from tests.unit.flow.route.fanouts import KEY, TOPIC_ID, Outcome, fanout_flow, kafka_part, type_flow

SCHEMA = pa.schema([("type", pa.string()), ("id", pa.int64())])


def replayed(folder: Path, piece: RoutedSlice, *batches: pa.RecordBatch) -> Outcome:
    types = [type_flow("A", SCHEMA), type_flow("B", SCHEMA)]
    flow = fanout_flow(folder, types, piece, replay_run=7)
    (answer,) = fanout_stage(flow)(batches)
    return Outcome(flow, decode_report(answer.column("report")[0].as_py(), TaskReport))


def piece(**left: int) -> RoutedSlice:
    return RoutedSlice(TOPIC_ID, 100, 200, 1, {"A": 100, "B": 100}, left=left)


def test_written_offsets_are_reported_and_bad_records_are_counted_once(tmp_path: Path) -> None:
    part = kafka_part([{"type": "A", "id": 1}, {"type": "A", "id": "x"}, {"type": "A", "id": 2}, {"type": "C"}, b"{"])
    result = replayed(tmp_path, piece(), part)
    assert (result.offsets("A"), result.shares["A"].replayed) == ([100, 102], ((100, 101), (102, 103)))
    assert (result.shares["A"].counts.quarantined, result.shares[UNROUTED].counts.quarantined) == (1, 2)
    assert not any(share.quarantine_files for share in result.shares.values())
    assert not (tmp_path / "quarantine").exists()
    (file,) = result.shares["A"].files
    name = parse_replayed_name(file.path)
    assert name is not None and name.run == "7"
    written = result.written(file)
    assert (written.run, written.start, written.end) == (7, 100, 103)


def test_records_that_the_log_gives_to_their_type_are_passed_over(tmp_path: Path) -> None:
    part = kafka_part([{"type": name, "id": 1} for name in "ABABAB"])
    result = replayed(tmp_path, piece(A=104), part)
    assert (result.offsets("A"), result.offsets("B")) == ([100, 102], [101, 103, 105])
    counts = result.shares["A"].counts
    assert (counts.read, counts.written, counts.skipped, counts.conserved) == (3, 2, 1, True)
    assert result.report.shares[KEY]["B"].replayed == ((101, 102), (103, 104), (105, 106))
