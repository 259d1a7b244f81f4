"""Compaction: fewer files, the same rows, positions and totals, whatever other processes write (RULES C3)."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.environment import Environment
from penstock.errors import TransientError, UserError
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.names import parse_compacted_name
from penstock.lake.delta.compact import (
    VERSIONS_TO_LAND_MAX,
    commit_merged,
    compact,
    group_files,
    merge_group,
)
from penstock.lake.delta.files import active_files
from penstock.lake.delta.keys import field_key
from penstock.lake.delta.opening import open_or_create
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import DeltaLog
from penstock.lake.reports import CompactReport
from tests.support.active_paths import active_paths
from tests.support.lake import JOB, ONE, SCHEMA, ZERO, Lake, at_step, offsets

LARGE = 128 * 1024**2


def test_the_files_of_a_version_are_read_once(lake: Lake) -> None:
    table = lake.start(ZERO)
    lake.append(table, ZERO, 0, 10, ["d1"])
    files = table.active_files()
    assert len(files) == 1 and table.active_files() is files
    lake.append(table, ZERO, 10, 20, ["d1"])
    assert len(table.active_files()) == 2


def test_small_files_become_one_per_day_and_nothing_else_changes(lake: Lake) -> None:
    table = lake.start(ZERO, ONE)
    for start in (0, 10, 20):
        lake.append(table, ZERO, start, start + 10, ["d1", "d2"])
        lake.append(table, ONE, start, start + 10, ["d2"])
    before, version = table.state([ZERO, ONE]), table.version
    assert len(active_paths(table.handle)) == 9

    progress: list[tuple[int, int]] = []
    report = compact(lake.open(), LARGE, lambda done, total: progress.append((done, total)))

    assert (report.files_removed, report.files_added, report.rows, report.commits) == (9, 2, 60, 1)
    assert progress == [(2, 2)]
    after = lake.open()
    assert after.version == version + 1
    assert len(active_paths(after.handle)) == 2
    assert lake.rows() == offsets(ZERO, 0, 30) + offsets(ONE, 0, 30)
    state = after.state([ZERO, ONE])
    assert state.partitions == before.partitions
    assert state.fingerprints == before.fingerprints
    assert [state.of(item).position for item in (ZERO, ONE)] == [30, 30]
    assert state.of(ZERO).totals.written == 30
    assert after.transaction(field_key(JOB, ZERO, "token")) == 1
    assert compact(after, LARGE) == CompactReport()


def test_a_table_without_small_files_gets_no_commit(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    version = table.version
    assert compact(table, LARGE) == CompactReport()
    local.append(table, ZERO, 10, 20)
    assert compact(table, 1) == CompactReport()
    assert table.version == version + 1


def test_groups_end_at_the_target_and_larger_files_stay(local: Lake) -> None:
    table = local.start(ZERO)
    for start in range(0, 50, 10):
        local.append(table, ZERO, start, start + 10)
    files = active_files(table.handle)
    sizes = [item.size_bytes for item in files]
    assert max(sizes) - min(sizes) < 20
    # Two of the five reach one and a half sizes: two groups, and the fifth is alone.
    groups = group_files(files, int(1.5 * max(sizes)))
    assert [len(group.files) for group in groups] == [2, 2]
    oldest_first = [file.modified_at_ms for group in groups for file in group.files]
    assert oldest_first == sorted(oldest_first)
    assert group_files(files, min(sizes)) == ()


ODD_DAYS = ["a b", "12:30", "100%", "%20", "ü/é=1", "..", None, "x" * 300]


def test_partition_values_of_any_spelling_are_kept(lake: Lake) -> None:
    table = lake.start(ZERO)
    count = len(ODD_DAYS)
    for start in (0, count):
        lake.append(table, ZERO, start, start + count, ODD_DAYS)
    report = compact(table, LARGE)
    assert (report.files_removed, report.files_added) == (2 * count, count)
    added = pa.table(table.handle.get_add_actions(flatten=True))
    assert sorted(map(str, added["partition.day"].to_pylist())) == sorted(map(str, ODD_DAYS))
    storage = table.storage()
    assert all(storage.exists(path) for path in active_paths(table.handle))
    result = rows_by_the_log(lake)
    assert result == sorted((str(ODD_DAYS[offset % count]), offset) for offset in range(2 * count))


def rows_by_the_log(lake: Lake) -> list[tuple[str, int]]:
    """Day and offset of every row: the day as in the log, the offsets that the file holds."""
    table = lake.open()
    result = []
    for file in active_files(table.handle):
        with table.storage().open_reader(file.path) as source:
            result += [(str(file.values[0]), offset) for offset in pl.read_parquet(source)["offset"]]
    return sorted(result)


TYPED = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ("yes", pa.bool_()),
        ("n", pa.int64()),
        ("items", pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())]))),
        ("labels", pa.map_(pa.string(), pa.string())),
    ]
)


def test_partition_columns_of_every_kind_and_nested_values_are_kept(tmp_path: Path) -> None:
    spec = TablePlace(path=str(tmp_path / "typed"), partition_by=("at", "price", "yes"))
    table = open_or_create(spec, JOB, TYPED, "add")
    keys = [
        (datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC), Decimal("1.50"), True),
        (None, None, None),
        (datetime(1969, 12, 31, 23, 59, tzinfo=UTC), Decimal("-0.01"), False),
    ]
    for round_number in range(2):
        rows = [
            {
                **dict(zip(spec.partition_by, key, strict=True)),
                "n": 10 * round_number + number,
                "items": [{"a": number, "b": None}, None],
                "labels": [("k", str(number))],
            }
            for number, key in enumerate(keys)
        ]
        append_rows(table, TYPED, rows)
    before = typed_rows(spec.path)
    report = compact(table, LARGE)
    assert (report.files_removed, report.files_added, report.rows) == (6, 3, 6)
    assert typed_rows(spec.path) == before
    assert [row["n"] for row in before] == [0, 1, 2, 10, 11, 12]


def append_rows(table: DeltaLog, schema: pa.Schema, rows: Sequence[Mapping[str, object]]) -> None:
    names = iter(f"s.t.p0.0.1.{number:032x}.pq" for number in range(table.version * 100, table.version * 100 + 99))
    writer = StagedWriter(
        WriteOptions(table.spec.path, schema, {}, table.spec.partition_by), lambda: next(names), "t", 0
    )
    writer.write(pa.RecordBatch.from_pylist(list(rows), schema))
    table.commit_actions([table.add_action(file) for file in writer.finish()], {}, {})
    table.refresh()


def typed_rows(path: str) -> list[dict[str, object]]:
    return pl.read_delta(path).sort("n").to_dicts()


def test_files_from_before_a_column_was_added_are_merged_with_null_in_it(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 3)
    local.append(table, ZERO, 3, 6)
    wider = pa.schema([*SCHEMA, ("late", pa.int64()), ("deep", pa.struct([("x", pa.string())]))])
    table.add_columns(wider)
    table.refresh()
    append_rows(
        table,
        table.schema,
        [{"day": "d1", "partition": 0, "offset": 6, "text": "t", "late": 7, "deep": {"x": "y"}}],
    )
    assert compact(table, LARGE).rows == 7
    frame = pl.read_delta(local.path).sort("offset")
    assert frame["late"].to_list() == [None] * 6 + [7]
    assert frame["deep"].to_list()[-1] == {"x": "y"}
    assert frame["text"].to_list()[:2] == ["row 0/0", "row 0/1"]


def test_outputs_carry_statistics_and_change_no_data_for_streaming_readers(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    local.append(table, ZERO, 10, 25)
    compact(table, LARGE)
    entry = Path(local.path) / "_delta_log" / f"{table.version:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    removes = [action["remove"] for action in actions if "remove" in action]
    (added,) = [item["add"] for item in actions if "add" in item]
    assert len(removes) == 2
    assert not any(remove["dataChange"] for remove in [*removes, added])
    assert all(file["partitionValues"] == {"day": "d1"} for file in [*removes, added])
    assert not any("txn" in action for action in actions)
    stats = json.loads(added["stats"])
    assert stats["numRecords"] == 25
    assert (stats["minValues"]["offset"], stats["maxValues"]["offset"]) == (0, 24)
    name = parse_compacted_name(added["path"])
    assert name is not None
    assert name.version_max == table.version - 1 + VERSIONS_TO_LAND_MAX


def test_a_concurrent_append_is_kept_and_the_same_output_lands(lake: Lake) -> None:
    table = lake.start(ZERO)
    lake.append(table, ZERO, 0, 10)
    lake.append(table, ZERO, 10, 20)
    ours = lake.open(at_step("compact_checked", lambda: lake.append(table, ZERO, 20, 30)))
    report = compact(ours, LARGE)
    assert (report.files_removed, report.files_added, report.dropped) == (2, 1, 0)
    assert lake.rows() == offsets(ZERO, 0, 30)
    assert table.state([ZERO]).of(ZERO).position == 30
    assert len(compacted_on_disk(table)) == 1


def compacted_on_disk(table: DeltaLog) -> list[str]:
    return [entry.path for entry in table.storage().list() if parse_compacted_name(entry.path)]


def test_a_commit_of_a_batch_is_kept_when_a_compaction_comes_first(lake: Lake) -> None:
    table = lake.start(ZERO)
    lake.append(table, ZERO, 0, 10)
    lake.append(table, ZERO, 10, 20)
    stale = lake.open(at_step("checked", lambda: compact(table, LARGE)))
    outcome = lake.append(stale, ZERO, 20, 30)
    assert outcome.refused == ()
    assert lake.rows() == offsets(ZERO, 0, 30)
    assert len(active_paths(stale.handle)) == 2


def test_of_two_compactions_one_wins_and_nothing_is_doubled(lake: Lake) -> None:
    table = lake.start(ZERO)
    for start in (0, 10, 20):
        lake.append(table, ZERO, start, start + 10)
    winner: list[CompactReport] = []
    loser = lake.open(at_step("compact_checked", lambda: winner.append(compact(table, LARGE))))
    report = compact(loser, LARGE)
    assert winner[0].files_removed == 3
    assert report == CompactReport(dropped=1)
    assert lake.rows() == offsets(ZERO, 0, 30)
    assert len(compacted_on_disk(table)) == 2
    assert len(active_paths(lake.open().handle)) == 1


def test_a_group_that_lost_a_file_drops_out_and_the_others_land(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10, ["d1", "d2"])
    local.append(table, ZERO, 10, 20, ["d1", "d2"])
    ours = local.open(at_step("compact_staged", lambda: DeltaTable(local.path).delete("day = 'd1' and offset < 10")))
    report = compact(ours, LARGE)
    assert (report.files_removed, report.files_added, report.dropped) == (2, 1, 1)
    kept = [(0, offset) for offset in range(20) if offset >= 10 or offset % 2 == 1]
    assert local.rows() == kept


def test_a_column_added_meanwhile_does_not_stop_a_compaction(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    local.append(table, ZERO, 10, 20)
    other = local.open()
    ours = local.open(at_step("compact_checked", lambda: other.add_columns(pa.schema([("late", pa.int64())]))))
    assert compact(ours, LARGE).files_removed == 2
    assert local.rows() == offsets(ZERO, 0, 20)
    assert "late" in local.open().schema.names


def test_an_output_does_not_land_behind_its_version_bound(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    local.append(table, ZERO, 10, 20)
    (group,) = group_files(active_files(table.handle), LARGE)
    version_max = table.version + 1
    merged = merge_group(table, group, table.schema, version_max)
    local.append(local.open(), ZERO, 20, 30)
    version = local.open().version
    assert commit_merged(table, (merged,), table.schema, version_max) == ()
    assert local.open().version == version == version_max
    again = merge_group(table, group, table.schema, version + 1)
    assert commit_merged(table, (again,), table.schema, version + 1) == (again,)
    assert local.rows() == offsets(ZERO, 0, 30)


def test_a_commit_whose_response_was_lost_is_recognised(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    local.append(table, ZERO, 10, 20)
    ours = LosesAnAnswer(local.spec, JOB, DeltaTable(local.path), Environment(sleep=lambda seconds: None))
    report = compact(ours, LARGE)
    assert (report.files_removed, report.files_added, report.commits, report.dropped) == (2, 1, 1, 0)
    assert local.rows() == offsets(ZERO, 0, 20)
    assert ours.version == table.version + 1


class LosesAnAnswer(DeltaLog):
    """The first commit lands, and its caller gets an error."""

    lost = False

    def commit_actions(self, *args: object, **named: object) -> None:
        super().commit_actions(*args, **named)  # type: ignore[arg-type]
        if not self.lost:
            self.lost = True
            raise TransientError("the answer was lost")


def test_an_error_in_the_middle_leaves_the_table_as_it_was(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    local.append(table, ZERO, 10, 20)
    version = table.version

    def fail() -> None:
        raise TransientError("failpoint")

    with pytest.raises(TransientError):
        compact(local.open(at_step("compact_staged", fail)), LARGE)
    assert local.open().version == version
    assert compact(table, LARGE).rows == 20
    assert local.rows() == offsets(ZERO, 0, 20)


def test_a_table_with_deletion_vectors_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "vectors")
    write_deltalake(path, pa.table({"a": [1, 2, 3]}), configuration={"delta.enableDeletionVectors": "true"})
    write_deltalake(path, pa.table({"a": [4]}), mode="append")
    spec = TablePlace(path=path)
    handle = DeltaTable(path)
    table = DeltaLog(spec, JOB, handle, Environment())
    (group,) = group_files(active_files(handle), LARGE)
    merged = merge_group(table, group, table.schema, 1000)
    delete_one_row_by_vector(path)
    with pytest.raises(UserError):
        compact(table, LARGE)
    # Also one that appears between the merge and the commit: the path alone would look unchanged.
    unchanged = replace(group, files=active_files(table.handle))
    assert commit_merged(table, (replace(merged, group=unchanged),), table.schema, 1000) == ()
    assert DeltaTable(path).version() == 2


def delete_one_row_by_vector(path: str) -> None:
    """What Spark commits for `DELETE ... WHERE a = 2`: the same file again, with a bitmap that holds row 1."""
    handle = DeltaTable(path)
    (file,) = (item for item in active_files(handle) if pq.read_metadata(f"{path}/{item.path}").num_rows == 3)
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 1)
    body = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    body += b"\0" * (-len(body) % 4)
    vector = {"storageType": "i", "pathOrInlineDv": _z85(body), "sizeInBytes": len(body), "cardinality": 1}
    same = {"path": file.path, "partitionValues": {}, "size": file.size_bytes, "dataChange": True}
    lines = [
        {"remove": {**same, "deletionTimestamp": 1}},
        {
            "add": {
                **same,
                "modificationTime": file.modified_at_ms,
                "stats": '{"numRecords":3}',
                "deletionVector": vector,
            }
        },
    ]
    entry = Path(path) / "_delta_log" / f"{handle.version() + 1:020}.json"
    entry.write_text("\n".join(map(json.dumps, lines)))


def _z85(data: bytes) -> str:
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = ""
    for (number,) in struct.iter_unpack(">I", data):
        text += "".join(letters[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text
