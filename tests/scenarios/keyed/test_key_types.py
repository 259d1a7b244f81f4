"""Keys of every valid type, found among files by statistics for all values."""

from __future__ import annotations

import base64
import string
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.keyed_tables import Keyed
from tests.support.tries import tries

TEXTS = [
    "",
    "a",
    "A",
    "é",
    "e\u0301",
    "\U0001f600",
    "\uffff",
    "\U0010ffff" * 40,
    "x" * 31,
    "x" * 32,
    "x" * 33,
    "x" * 5000,
]
VALUES: dict[str, list[Any]] = {
    "byte": [-128, 0, 127],
    "int": [-(2**31), 0, 2**31 - 1],
    "long": [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1],
    "boolean": [True, False],
    "date": ["0001-01-01", "1969-12-31", "2026-03-01", "9999-12-31"],
    "timestamp": [
        f"{text}Z"
        for text in (
            "1969-12-31T23:59:59.999999",
            "2026-03-01T00:00:00",
            "2026-03-01T00:00:00.000001",
            "9999-12-31T23:59:59",
        )
    ],
    "string": TEXTS,
    "binary": [base64.b64encode(text).decode() for text in (b"", b"\x00", b"\xff\xfe", b"\x00" * 40, b"a")],
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_key_is_found_again_in_its_file(tmp_path: Path, kind: str) -> None:
    table = Keyed(tmp_path, "row_keys: [id], buckets: 2, chunk_rows: 2", schema=f"id: {kind}, value: long")
    for turn in range(3):
        for number, value in enumerate(VALUES[kind]):
            table.put({"id": value, "value": 100 * turn + number})
            if turn == 0:
                table.run()
        table.run()
        result = sorted(pl.read_delta(table.path)["value"].to_list())
        assert result == [100 * turn + number for number in range(len(VALUES[kind]))]
    assert table.totals()[2] == 0
    assert table.verified().ok


@settings(max_examples=tries(6), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    texts=st.lists(
        st.text(st.characters(codec="utf-8"), max_size=40) | st.text(string.printable, min_size=30), max_size=12
    )
)
def test_distinct_texts_are_distinct_keys(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("texts")
    table = Keyed(
        folder,
        "partition_keys: [head], row_keys: [id], buckets: 2, chunk_rows: 3",
        schema="id: string, value: long",
        columns="head: 'substr(id, 1, 2)'",
    )
    expected = {}
    for number, text in enumerate(texts):
        table.put({"id": text, "value": number})
        expected[text] = number
        if number % 3 == 2:
            table.run()
    table.run()
    assert dict(pl.read_delta(table.path).select("id", "value").rows()) == expected
    assert table.verified().ok
