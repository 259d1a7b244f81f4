"""Unexpected input on other routes than a plain field: headers, keys, wrapped payloads, inferred columns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.lake.state import Totals
from penstock.watch.verify import verify
from tests.support.exports import ExportPipe, event
from tests.support.kafka import Headers, Produce, Topics

NO_HEADER = "has no type: no text in a header kind"
NO_KEY = "has no type: no text in its key"


@pytest.fixture
def second(tmp_path: Path, bootstrap: str, spark: SparkSession) -> ExportPipe:
    """A second job with a root of its own."""
    folder = tmp_path / "second"
    folder.mkdir()
    return ExportPipe(folder, bootstrap, spark)


def reasons(export: ExportPipe) -> dict[int, str]:
    return dict(export.quarantined("offset", "error"))


def conserved(export: ExportPipe) -> bool:
    totals = sum((partition.totals for partition in export.state.partitions.values()), Totals())
    return totals.conserved and totals.filtered == 0


def test_headers_and_keys_that_name_no_type_are_quarantined_and_a_tombstone_with_one_is_a_row(
    export: ExportPipe, second: ExportPipe, topic: Topics, produce: Produce
) -> None:
    """One topic, and two jobs: by header and by key."""
    sent: list[tuple[Headers, bytes | None, str | None]] = [
        ([("kind", b"A")], b"B", event("A", 0)),
        ([], None, event("A", 1)),
        ([("kind", b"A"), ("kind", b"B")], b"A", event("A", 2)),
        ([("kind", b"\xff")], b"\xff", event("A", 3)),
        ([("kind", None)], b"", event("A", 4)),
        ([("kind", b"../A")], b"A/..", event("A", 5)),
        ([("Kind", b"A")], b"a", event("A", 6)),
        ([("kind", b"A")], b"A", None),
        ([("kind", b"B")], b"B", "not JSON"),
        ([("kind", b"A"), ("kind", None)], b"A\0", event("A", 9)),
    ]
    name = topic()
    for headers, key, value in sent:
        produce(name, [value], key=key, headers=headers)
    on = "tombstone: row"
    export.describe(name, by="header(kind)", event_time="kafka.timestamp", on=on)
    second.describe(name, by="key", event_time="kafka.timestamp", on=on)
    export.run_to_end()
    second.run_to_end()
    assert export.rows("A", "kafka_offset", "id") == [(0, 0), (7, None)]
    assert export.rows("B", "kafka_offset", "id") == [(2, 2)]
    by_header = reasons(export)
    assert by_header.pop(8).startswith("not JSON")
    unknown = 'its type "../A" is not known'
    assert by_header == {1: NO_HEADER, 3: NO_HEADER, 4: NO_HEADER, 5: unknown, 6: NO_HEADER, 9: NO_HEADER}
    assert second.rows("A", "kafka_offset", "id") == [(2, 2), (7, None)]
    assert second.rows("B", "kafka_offset", "id") == [(0, 0)]
    by_key = reasons(second)
    assert by_key.pop(8).startswith("not JSON")
    named = {4: '""', 5: '"A/.."', 6: '"a"', 9: '"A\\u0000"'}
    assert by_key == {
        1: NO_KEY,
        3: NO_KEY,
        **{offset: f"its type {value} is not known" for offset, value in named.items()},
    }
    for item in (export, second):
        assert item.everywhere() == Counter((0, offset) for offset in range(len(sent)))
        assert conserved(item)
        assert verify(item.job).ok
