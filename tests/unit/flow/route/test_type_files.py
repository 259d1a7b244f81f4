"""The files of a task: within their limits, with unique names, and with their content described in their footers."""

from __future__ import annotations

import errno
import json
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.flow.route.fanout_flow import RoutedSlice
from penstock.flow.route.type_files import TypeFiles
from penstock.flow.write.names import parse_staged_name
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.flow.write.report import UNROUTED
from penstock.flow.write.tally import TypeKey
from tests.support.tries import tries
from tests.unit.flow.route.fanouts import KEY, TOPIC_ID, fanout_flow, type_flow

SCHEMA = pa.schema([("n", pa.int64())])
A, B, NO_TYPE = TypeKey(KEY, "a"), TypeKey(KEY, "b"), TypeKey(KEY, UNROUTED)


def pool_of(folder: Path, piece: RoutedSlice | None = None, **changes: Any) -> TypeFiles:
    return TypeFiles(fanout_flow(folder, [type_flow("a", SCHEMA), type_flow("b", SCHEMA)], piece, **changes))


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=SCHEMA)


def add(pool: TypeFiles, owner: TypeKey, day: str, *numbers: int) -> None:
    pool.add(owner, day, rows(*numbers), np.array(numbers))


def fail(error: Exception) -> None:
    raise error


def quarantined(offset: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"topic": "orders", "offset": offset}], schema=QUARANTINE_SCHEMA)


def files_in(folder: Path) -> list[Path]:
    return sorted((folder / "root").rglob("*.pq"))


def test_no_file_is_opened_before_rows_have_to_be_written(tmp_path: Path) -> None:
    pool = pool_of(tmp_path)
    for number in range(300):
        add(pool, (A, B)[number % 2], f"day {number}", number)
    assert files_in(tmp_path) == []
    assert sum(len(staged.files) for staged in pool.finish().values()) == 300


def test_a_full_row_group_is_written_at_once_into_the_same_file(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, row_group_bytes_max=16)
    for number in range(6):
        add(pool, A, "d", number)
    assert len(files_in(tmp_path)) == 1
    (file,) = pool.finish()[A].files
    footer = pq.read_metadata(tmp_path / "root" / file.path)
    assert [footer.row_group(index).num_rows for index in range(footer.num_row_groups)] == [2, 2, 2]


def test_the_largest_buffer_is_written_when_all_exceed_the_limit(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, pending_bytes_max=40)
    add(pool, A, "d1", 1)
    add(pool, B, "d2", 2, 3, 4)
    add(pool, A, "d1", 5)
    add(pool, B, "d3", 6)
    assert [item.parent.name for item in files_in(tmp_path)] == ["b"]


def test_the_least_recently_written_file_closes_first_and_its_day_goes_on_in_another(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, row_group_bytes_max=1, open_writers_max=2)
    for number, day in enumerate(["d1", "d2", "d1", "d3", "d1", "d2"]):
        add(pool, A, day, number)
    result = [(file.partition_values["day"], numbers(tmp_path, file.path)) for file in pool.finish()[A].files]
    assert result == [("d2", [1]), ("d3", [3]), ("d1", [0, 2, 4]), ("d2", [5])]


def numbers(folder: Path, path: str) -> list[int]:
    result: list[int] = pq.ParquetFile(folder / "root" / path).read()["n"].to_pylist()
    return result


@settings(max_examples=tries(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from([A, B]), st.sampled_from(["d1", "d2", "d3"]), st.integers(1, 9)), max_size=40),
    st.integers(1, 3),
    st.integers(1, 200),
    st.integers(1, 400),
)
def test_every_row_is_in_one_file_of_its_type_and_day_under_any_limits(
    tmp_path: Path, adds: list[tuple[TypeKey, str, int]], writers: int, group_bytes: int, pending_bytes: int
) -> None:
    folder = tmp_path / uuid.uuid4().hex
    limits: dict[str, Any] = {
        "open_writers_max": writers,
        "row_group_bytes_max": group_bytes,
        "pending_bytes_max": pending_bytes,
    }
    pool = pool_of(folder, **limits)
    expected: dict[tuple[TypeKey, str], list[int]] = {}
    first = 0
    for owner, day, count in adds:
        add(pool, owner, day, *range(first, first + count))
        expected.setdefault((owner, day), []).extend(range(first, first + count))
        first += count
    result: dict[tuple[TypeKey, str | None], list[int]] = {}
    for owner, staged in pool.finish().items():
        for file in staged.files:
            ids = numbers(folder, file.path)
            assert (file.rows, file.last_offset) == (len(ids), max(ids))
            result.setdefault((owner, file.partition_values["day"]), []).extend(ids)
    assert {key: sorted(value) for key, value in result.items()} == expected


def footer(folder: Path, path: str) -> dict[str, Any]:
    """What the footer of a task's file shows of it."""
    facts: dict[str, Any] = json.loads(pq.read_metadata(folder / "root" / path).metadata[b"penstock"])
    [written] = facts.pop("written")
    assert facts == {"v": 2, "job": "shop"}
    return dict(written)


def test_a_footer_holds_all_that_a_rebuild_needs(tmp_path: Path) -> None:
    piece = RoutedSlice(TOPIC_ID, 50, 900, 3, {"a": 120, "b": 50}, after={"a": 90})
    pool = pool_of(tmp_path, piece)
    add(pool, A, "2026-01-07", 130, 140)
    add(pool, A, "2026-01-08", 135)
    add(pool, B, "2026-01-07", 150)
    pool.add(A, None, quarantined(131), np.array([131]))
    staged = pool.finish()
    other = footer(tmp_path, staged[B].files[0].path)
    assert footer(tmp_path, staged[A].files[0].path) == {
        "topic": "orders",
        "topic_id": TOPIC_ID,
        "number": 3,
        "batch": "b1",
        "type": "a",
        "day": "2026-01-07",
        "start": 120,
        "end": 900,
        "last": 140,
        "after": 90,
        "task": other["task"],
        "tasks": 3,
        "types": {"a": 2, "b": 1},
    }
    assert other["start"] == 50
    names = [parse_staged_name(staged[owner].files[0].path) for owner in (A, B)]
    assert [(name.start, name.end) for name in names if name] == [(120, 900), (50, 900)]


def test_a_file_that_closed_early_states_no_number_of_files(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, row_group_bytes_max=1, open_writers_max=1)
    add(pool, A, "d1", 1)
    add(pool, B, "d1", 2)
    staged = pool.finish()
    assert "types" not in footer(tmp_path, staged[A].files[0].path)
    assert footer(tmp_path, staged[B].files[0].path)["types"] == {"a": 1, "b": 1}


def test_statistics_are_collected_if_the_table_needs_them(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, statistics=True)
    add(pool, A, "d", 1, 5)
    (file,) = pool.finish()[A].files
    assert json.loads(file.stats)["maxValues"] == {"n": 5}


def test_a_failed_type_leaves_no_file_in_the_report_and_the_others_theirs(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, row_group_bytes_max=1, open_writers_max=1)
    add(pool, A, "d1", 1)
    add(pool, A, "d2", 2)
    add(pool, B, "d1", 3)
    with pool.isolated(A):
        fail(OSError("quota\n  of a"))
    add(pool, A, "d3", 4)
    assert pool.failed[A] == "quota of a"
    assert B not in pool.failed
    staged = pool.finish()
    assert staged.keys() == {B}


def test_records_of_no_type_fail_the_task(tmp_path: Path) -> None:
    pool = pool_of(tmp_path)
    with pytest.raises(OSError), pool.isolated(NO_TYPE):
        raise OSError("quota")


def test_an_error_that_is_not_of_the_storage_is_not_kept_from_the_task(tmp_path: Path) -> None:
    pool = pool_of(tmp_path)
    with pytest.raises(RuntimeError), pool.isolated(A):
        raise RuntimeError("a bug")


def test_an_abandoned_pool_stages_nothing_and_deletes_nothing(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, row_group_bytes_max=1)
    add(pool, A, "d1", 1)
    pool.abandon()
    assert pool.finish() == {}
    assert len(files_in(tmp_path)) == 1


def test_a_file_that_cannot_be_closed_fails_its_type_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def fsync_or_fail(number: int) -> None:
        if "/a/" in os.readlink(f"/proc/self/fd/{number}"):
            raise OSError(errno.ENOSPC, "no space")
        fsync(number)

    monkeypatch.setattr(os, "fsync", fsync_or_fail)
    pool = pool_of(tmp_path)
    add(pool, A, "2026-01-01", 1)
    add(pool, B, "2026-01-01", 2)
    staged = pool.finish()
    assert set(staged) == {B}
    assert "no space left" in pool.failed[A]


def test_every_file_of_a_report_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def note(number: int) -> None:
        fsync(number)
        synced.add(os.readlink(f"/proc/self/fd/{number}"))

    monkeypatch.setattr(os, "fsync", note)
    pool = pool_of(tmp_path, open_writers_max=2, row_group_bytes_max=1)
    for day in range(1, 29):
        add(pool, A, f"2026-01-{day:02}", day)
    files = pool.finish()[A].files
    assert len(files) == 28
    assert {str(tmp_path / "root" / file.path) for file in files} <= synced
    assert all((tmp_path / "root" / file.path).stat().st_size == file.size_bytes for file in files)
