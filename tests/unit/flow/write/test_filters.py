"""Readers that skip files by our statistics find the rows that a full scan finds.

`PENSTOCK_FILTER_SEEDS=100-200` tries these seeds instead; the seed that failed is in the test's name.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.filtered_tables import (
    Filter,
    Reader,
    filtered_table,
    filters,
    with_deltalake,
    with_duckdb,
    with_polars,
    written_table,
)
from tests.support.tries import tries

READERS: dict[str, Reader] = {"deltalake": with_deltalake, "polars": with_polars, "duckdb": with_duckdb}
FILTERS_PER_SEED = 20


def seeds() -> range:
    first, _, last = os.environ.get("PENSTOCK_FILTER_SEEDS", f"1-{tries(2)}").partition("-")
    return range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("seed", seeds())
def test_skipping_files_changes_no_result(tmp_path: Path, seed: int) -> None:
    table = filtered_table(tmp_path, seed)
    for item in filters(table, seed, FILTERS_PER_SEED):
        for name, reader in READERS.items():
            # Files with NaN or an infinity have no bound, for which deltalake's data set skips them always.
            if (name, item.column) != ("duckdb", "ratio"):
                assert reader(table.path, item) == table.expected(item, reader), (name, item)


@pytest.mark.parametrize("name", list(READERS))
def test_text_of_every_plane_is_found_where_it_is_the_bound_of_its_file(tmp_path: Path, name: str) -> None:
    texts = ["A", "é", "\uffff", "\U00010000", "😀", "𠮷野家", "\U0002ffff", "\U000e0041", "\U00100000", "\U0010ffff"]
    texts += [text * 33 for text in texts]
    path = written_table(tmp_path / "table", [[text] for text in texts])
    for number, text in enumerate(texts):
        for kind in ("=", "<=", ">="):
            result = READERS[name](path, Filter("text", kind, text))
            assert number in result, (text, kind)
        assert READERS[name](path, Filter("text", "=", text)) == [number]


def test_statistics_keep_the_characters_of_text(tmp_path: Path) -> None:
    path = written_table(tmp_path / "table", [["𠮷野家"]])
    log = Path(path, "_delta_log", "00000000000000000001.json").read_text()
    assert "𠮷野家" in log
    assert r"\ud842" not in log
