"""Which files of a bucket are put together: so many small ones that it is worth it, and never large ones."""

from __future__ import annotations

from penstock.tables.keyed.files import small_alike
from penstock.tables.keyed.merging.plan import OldFile

CHUNK_ROWS = 800


def files(rows: int, count: int, first: int = 0) -> list[OldFile]:
    return [OldFile(f"f{at:03}", rows, 1, {"at": (at, at)}) for at in range(first, first + count)]


def test_eight_files_that_make_one_chunk_are_put_together() -> None:
    assert small_alike(files(100, 8), CHUNK_ROWS, "at") == {f"f{at:03}" for at in range(8)}


def test_fewer_files_and_larger_ones_stay() -> None:
    assert not small_alike(files(100, 7), CHUNK_ROWS, "at")
    assert not small_alike(files(101, 30), CHUNK_ROWS, "at")


def test_no_more_are_put_together_than_make_a_chunk_the_oldest_first() -> None:
    assert small_alike(files(90, 20, first=40), CHUNK_ROWS, "at") == {f"f{at:03}" for at in range(40, 48)}
