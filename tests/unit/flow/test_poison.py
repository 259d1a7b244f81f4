"""Records that break a job are set aside unseen, each counted where it belongs; a dry task does all but write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.flow.compile import flow_of
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import FanoutFlow, RoutedSlice
from penstock.flow.task import Flow, fused_stage
from penstock.flow.write.manifest import Counts
from penstock.flow.write.report import UNROUTED, Share, TaskReport, decode_report
from penstock.logs.log import Batch, Partition, Slice
from tests.support.lake import Lake
from tests.unit.flow.route.fanouts import KEY, TOPIC_ID, fanout_flow, kafka_part, run, type_flow

SCHEMA = pa.schema([("type", pa.string()), ("id", pa.int64())])
RECORDS = kafka_part(
    [{"type": "A", "id": 0}, {"type": "B", "id": 1}, {"type": "A", "id": 2}, b"{", {"type": "B", "id": 4}]
)


def two_types(folder: Path, poison: dict[int, str], piece: RoutedSlice | None = None, **changes: Any) -> FanoutFlow:
    types = [type_flow("A", SCHEMA), type_flow("B", SCHEMA)]
    return fanout_flow(folder, types, piece, poison={KEY: poison}, **changes)


def piece(takes: dict[str, int], main: bool = True) -> RoutedSlice:
    return RoutedSlice(TOPIC_ID, 100, 1_000, 1, takes, takes, main)


def test_poison_goes_to_quarantine_for_its_type_and_the_others_are_written(tmp_path: Path) -> None:
    result = run(two_types(tmp_path, {102: "crashes", 103: "crashes too", 999: "is not here"}), RECORDS)
    assert (result.offsets("A"), result.offsets("B")) == ([100], [101, 104])
    assert result.bad("A") == {102: "crashes"}
    assert result.bad() == {103: "crashes too"}
    assert result.shares["A"].counts == Counts(read=2, written=1, quarantined=1)


def test_a_part_of_nothing_but_poison_is_quarantined(tmp_path: Path) -> None:
    result = run(two_types(tmp_path, dict.fromkeys(range(100, 105), "crashes")), RECORDS)
    assert [set(result.bad(name)) for name in ("A", "B", UNROUTED)] == [{100, 102}, {101, 104}, {103}]


def test_poison_of_a_type_that_is_behind_is_left_to_its_catch_up(tmp_path: Path) -> None:
    poison = {101: "crashes", 103: "crashes"}
    first = run(two_types(tmp_path / "1", poison, piece({"A": 100})), RECORDS)
    assert first.shares["B"].counts == Counts(read=2)
    assert (first.bad("B"), first.bad()) == ({}, {103: "crashes"})
    second = run(two_types(tmp_path / "2", poison, piece({"B": 100}, main=False)), RECORDS)
    assert (second.shares[UNROUTED].counts, second.bad()) == (Counts(read=3, filtered=3), {})
    assert second.shares["B"].counts == Counts(read=2, written=1, quarantined=1)
    assert (second.offsets("B"), second.bad("B")) == ([104], {101: "crashes"})


@pytest.mark.parametrize("poison", [{}, {102: "crashes"}])
def test_a_dry_task_of_types_counts_the_same_and_writes_no_file(tmp_path: Path, poison: dict[int, str]) -> None:
    wet = run(two_types(tmp_path / "wet", poison), RECORDS)
    (answer,) = fanout_stage(two_types(tmp_path / "dry", poison, dry=True))([RECORDS])
    dry = decode_report(answer.column("report")[0].as_py(), TaskReport)
    assert dry.reasons == wet.report.reasons
    assert {name: share.counts for name, share in dry.shares[KEY].items()} == {
        name: share.counts for name, share in wet.shares.items()
    }
    assert not any(share.files or share.quarantine_files for share in dry.shares[KEY].values())
    assert not (tmp_path / "dry").exists()


def one_table(folder: Path, **changes: Any) -> Flow:
    lake = Lake(str(folder / "table"), partition_by=(), schema=SCHEMA)
    whole = Slice(Partition(KEY[0], TOPIC_ID, KEY[1]), 100, 105, 100)
    return replace(flow_of(lake.job, Batch("b1", (whole,)), SCHEMA, (), str(folder / "bad")), **changes)


def only_share(flow: Flow) -> Share:
    (answer,) = fused_stage(flow)([RECORDS])
    (share,) = decode_report(answer.column("report")[0].as_py(), TaskReport).shares[KEY].values()
    return share


def test_poison_of_one_table_goes_to_quarantine_and_the_others_are_written(tmp_path: Path) -> None:
    share = only_share(one_table(tmp_path, poison={KEY: {102: "crashes"}}))
    assert share.counts == Counts(read=5, written=3, quarantined=2)
    (file,) = share.quarantine_files
    bad = pq.ParquetFile(tmp_path / "bad" / file.path).read(["offset", "error"]).to_pylist()
    assert bad[0] == {"offset": 102, "error": "crashes"}
    assert [row["offset"] for row in bad] == [102, 103]


def test_a_dry_task_of_one_table_counts_the_same_and_writes_no_file(tmp_path: Path) -> None:
    share = only_share(one_table(tmp_path, dry=True, poison={KEY: {102: "crashes"}}))
    assert share == Share(counts=Counts(read=5, written=3, quarantined=2))
    assert list(tmp_path.iterdir()) == []
