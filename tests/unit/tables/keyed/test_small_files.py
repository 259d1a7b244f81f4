"""Which files of a bucket are put together: so many small ones that it is worth it, and never large ones."""

from __future__ import annotations

from penstock.lake.delta.active_files import ActiveFile
from penstock.tables.keyed.files import JOIN_BYTES_MAX, JOIN_FILES_MIN, small_alike

CHUNK_ROWS = 800


def files(rows: int, count: int, first: int = 0, size_bytes: int = 1) -> list[ActiveFile]:
    spans = [(f"f{at:03}", {"at": (at, at)}) for at in range(first, first + count)]
    return [ActiveFile(path, size_bytes, 0, ("0",), rows=rows, spans=span) for path, span in spans]


def test_eight_files_that_make_one_chunk_are_put_together() -> None:
    assert small_alike(files(100, 8), CHUNK_ROWS, "at") == {f"f{at:03}" for at in range(8)}


def test_fewer_files_and_larger_ones_stay() -> None:
    assert not small_alike(files(100, 7), CHUNK_ROWS, "at")
    assert not small_alike(files(101, 30), CHUNK_ROWS, "at")


def test_no_more_are_put_together_than_make_a_chunk_the_oldest_first() -> None:
    assert small_alike(files(90, 20, first=40), CHUNK_ROWS, "at") == {f"f{at:03}" for at in range(40, 48)}


def test_files_of_few_rows_and_many_bytes_stay() -> None:
    assert not small_alike(files(1, 30, size_bytes=600_000_000), CHUNK_ROWS, "at")


def test_no_more_are_put_together_than_the_bytes_of_one_merge() -> None:
    size_bytes = JOIN_BYTES_MAX // JOIN_FILES_MIN
    assert len(small_alike(files(1, 30, size_bytes=size_bytes), CHUNK_ROWS, "at")) == JOIN_FILES_MIN
