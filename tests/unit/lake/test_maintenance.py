"""What compaction and vacuum of all kinds of tables share: groups, the merge's own checks, and the reports."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvariantError
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name, replayed_name, staged_name
from penstock.lake.compaction import (
    EVERYTHING,
    CompactionGroup,
    CompactionLimits,
    CompactionSource,
    Limit,
    Merged,
    OneFile,
    gather,
    group,
    merge_files,
)
from penstock.lake.delta.vacuum import Dead, KeptReason, NameRules, classify_all, delete_dead
from penstock.lake.reports import CompactReport
from penstock.storage import Entry
from tests.support.memory_storage import MemoryStorage

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


@given(st.lists(st.integers(1, 20)), st.integers(1, 30), st.integers(1, 30))
def test_groups_keep_the_order_and_exceed_a_limit_only_by_their_last_item(
    weights: list[int], soft: int, firm: int
) -> None:
    result = list(gather(weights, Limit(lambda item: item, soft), Limit(lambda item: item, firm, firm=True)))
    assert [weight for group in result for weight in group] == weights
    for one in result:
        assert sum(one[:-1]) < soft
        assert sum(one) <= firm or len(one) == 1
    for one, following in pairwise(result):
        assert sum(one) >= soft or sum(one) + following[0] > firm, "nothing is cut off without need"


@dataclass(frozen=True)
class File:
    size_bytes: int


def test_a_single_file_is_not_compacted() -> None:
    files = [File(60), File(50), File(30), File(80), File(5)]
    assert [item.files for item in group(files, 100)] == [(File(60), File(50)), (File(30), File(80))]


def test_a_limited_compaction_takes_files_of_similar_size_if_there_are_enough() -> None:
    small, large, few = [File(60 + number) for number in range(4)], [File(900 + number) for number in range(5)], File(8)
    mixed = [file for pair in zip(small, large, strict=False) for file in pair] + [large[4], few]
    assert CompactionLimits(alike_min=4).worthwhile(mixed) == [small, large]
    assert CompactionLimits(alike_min=5).worthwhile(mixed) == [large]
    assert EVERYTHING.worthwhile(mixed) == [mixed]


def test_a_limited_compaction_ends_with_the_group_that_reaches_its_bytes() -> None:
    groups = [CompactionGroup((File(30), File(30))) for _ in range(3)]
    assert [len(CompactionLimits(bytes_max=size).within(groups)) for size in (0, 1, 60, 61, 999)] == [0, 1, 1, 2, 3]
    assert len(CompactionLimits(bytes_max=100).after(60).within(groups)) == 1
    assert EVERYTHING.after(10**12).within(groups) == groups


def test_groups_that_another_writer_took_away_are_reported_as_left() -> None:
    landed = Merged(CompactionGroup((File(1), File(1))), (StagedFile("", 0, "m", 7, 3),))
    report = CompactReport.of(3, [landed])
    assert report == CompactReport(2, 1, 7, 2, 3, commits=1, dropped=2)
    assert list(report.lines()) == ["2 files became 1, 7 rows, 2 bytes became 3; 2 groups left to another writer"]
    assert list(CompactReport().lines()) == ["nothing to compact"]


def stored(**columns: list[object]) -> MemoryStorage:
    storage, sink = MemoryStorage(), pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    storage.put("in", sink.getvalue().to_pybytes())
    return storage


def test_partition_values_come_from_the_table_log() -> None:
    storage = stored(DAY=["wrong", "wrong"], gone=[1, 2])
    sink = OneFile(storage, "out", SCHEMA, "snappy", 1, {})
    (output,) = merge_files(storage, [CompactionSource("in", {"day": pa.scalar("d1")})], SCHEMA, sink)
    assert output.rows == 2, "also of a file that has none of the columns"
    with storage.open_reader("out") as file:
        assert pq.read_table(file).to_pylist() == [{"id": None, "day": "d1"}] * 2


class LosesRows(OneFile):
    def write(self, rows: pa.RecordBatch) -> None:
        super().write(rows.slice(1))


def test_a_merge_that_loses_a_row_or_reads_an_invalid_file_is_refused() -> None:
    storage = stored(id=[1, 2])
    with pytest.raises(InvariantError, match="read 2 rows and wrote 1"):
        merge_files(storage, [CompactionSource("in")], SCHEMA, LosesRows(storage, "out", SCHEMA, "snappy", 1, {}))
    storage.put("in", b"no Parquet at all")
    with pytest.raises(InvariantError, match="cannot read in") as caught:
        merge_files(
            storage, [CompactionSource("in")], SCHEMA, OneFile(storage, "out", SCHEMA, "snappy", 1, {}), "do this"
        )
    assert caught.value.hint == "do this"


def test_vacuum_decides_by_name_and_a_dry_run_reports_the_same_and_deletes_nothing() -> None:
    unique = "0" * 32
    names = [
        staged_name("topic", 0, 0, 5, unique),
        compacted_name(3, unique),
        replayed_name("1", unique),
        replayed_name("by-hand", unique),
        "notes.txt",
    ]
    storage = MemoryStorage()
    for name in names:
        storage.put(name, b"12")
    rules = NameRules(lambda _: Dead.PASSED, lambda _: Dead.EXPIRED, lambda _: KeptReason.COMMITTABLE)
    entries = [Entry(name, 2, datetime(2026, 3, 2, tzinfo=UTC)) for name in names]
    result = classify_all("lake", storage, entries, lambda item: rules.classify(item.path))
    steps: list[str] = []
    dry, wet = (delete_dead([result], steps.append, dry_run=item) for item in (True, False))
    assert dry.deleted == wet.deleted
    assert sorted(entry.path for entry in storage.list()) == sorted(names[2:])
    assert steps == ["vacuum_deleting"] * 2
    assert list(wet.lines()) == [
        f"lake/{names[0]}: {Dead.PASSED}",
        f"lake/{names[1]}: {Dead.EXPIRED}",
        "2 files deleted, 4 bytes",
        f"1 kept: {KeptReason.COMMITTABLE}",
        f"2 kept: {KeptReason.UNKNOWN}",
    ]
    assert wet.as_json() == {
        "dry_run": False,
        "deleted": [
            {"table": "lake", "path": names[0], "size_bytes": 2, "reason": f"{Dead.PASSED}"},
            {"table": "lake", "path": names[1], "size_bytes": 2, "reason": f"{Dead.EXPIRED}"},
        ],
        "size_bytes": 4,
        "kept": {KeptReason.COMMITTABLE: 1, KeptReason.UNKNOWN: 2},
        "failed": [],
    }
