"""Unexpected input on other routes than a plain field: headers, keys, wrapped payloads, inferred columns."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

from penstock.lake.state import Totals
from penstock.watch.verify import verify
from tests.support.exports import FIRST_DAY, ExportPipe, data_files, event, type_of
from tests.support.kafka import Produce, Topics

AT = FIRST_DAY.isoformat()


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


def test_a_payload_without_the_configured_compression_is_quarantined_unchanged(
    export: ExportPipe, second: ExportPipe, topic: Topics, produce: Produce
) -> None:
    """By a field inside the payload, and by the key, which is outside of it."""
    good = gzip.compress(event("A", 1).encode())
    sent = [
        (good, ""),
        (event("A", 2).encode(), "payload is not gzip"),
        (good[:-9], "payload is not gzip: it ends too early"),
        (b"", "payload is not gzip"),
        (gzip.compress(b"not JSON"), "not JSON"),
        (good + good, "not JSON"),
        (gzip.compress(event("../x", 3).encode()), 'its type "../x" is not known'),
        (good, ""),
    ]
    name = topic()
    produce(name, [value for value, _ in sent], key="A")
    decode = "{format: json, payload: gzip}"
    export.describe(name, decode=decode)
    second.describe(name, decode=decode, by="key")
    export.run_to_end()
    second.run_to_end()
    assert export.offsets("A") == [0, 7]
    assert second.offsets("A") == [0, 6, 7]
    for item in (export, second):
        result = item.quarantined("offset", "error", "value")
        expected = [(offset, value) for offset, (value, _) in enumerate(sent) if (0, offset) not in places(item)]
        assert [(offset, value) for offset, _, value in result] == expected
        assert [reason for offset, reason, _ in result if sent[offset][1] not in reason] == []
        assert item.everywhere() == Counter((0, offset) for offset in range(len(sent)))
        assert conserved(item)
        assert verify(item.job).ok


def places(export: ExportPipe) -> set[tuple[int, int]]:
    return {(0, offset) for offset in export.offsets("A")}


def test_unusual_first_records_do_not_limit_an_inferred_schema(
    export: ExportPipe, second: ExportPipe, topic: Topics, produce: Produce
) -> None:
    """The job reads `at`, `name` and `size.total`: these columns are there whatever came first, and of their types."""
    first = [
        {"type": "A", "id": 1, "At": 5},
        {"type": "A", "id": 2, "at": 1772366400000, "name": 7},
        {"type": "A", "id": 3, "at": {"day": 1}, "size": "large"},
        {"type": "A", "id": 4, "at": True, "day": "x", "kafka_offset": 9, "a b": 1, "": 2, "\0": 3, "Type": 4},
    ]
    name = topic()
    produce(name, [json.dumps(item) for item in first])
    produce(name, ['{"type": "A", "type": "A"}', event("B", 9)])
    good = {"type": "A", "id": 6, "at": AT, "name": "n", "size": {"total": 5}}
    types = [type_of("A", schema="infer"), type_of("B", schema="{at: string, name: string, size: {total: long}}")]
    columns = "columns: {loud: upper(name), bytes: 'coalesce(size.total, 0)'}\n"
    for pipe in (export, second):
        pipe.describe(name, types=types, on="new_column: ignore", more=columns)
    export.run_to_end()
    assert reasons(export) == {
        0: "has no event time",
        1: "at: expected string, found number",
        2: "at: expected string, found object",
        3: "at: expected string, found boolean",
        4: "type: given twice",
    }
    produce(name, [json.dumps(good)])
    export.run_to_end()
    second.run_to_end()
    for pipe in (export, second):
        assert pipe.rows("A", "kafka_offset", "id", "loud", "bytes") == [(6, 6, "N", 5)]
        assert pipe.rows("B", "kafka_offset", "loud", "bytes") == [(5, None, 0)]
        assert pipe.everywhere() == Counter((0, offset) for offset in range(7))
        assert conserved(pipe)
        assert verify(pipe.job).ok


def test_records_without_any_field_cannot_fix_the_columns_of_their_type(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ["{}", "not JSON", '{"a b": 1, "day": 2}', None], key="A")
    types = [type_of("A", schema="infer")]
    export.describe(name, types=types, by="key", event_time="kafka.timestamp", on="tombstone: row, new_column: ignore")
    export.run_to_end()
    nothing = "has no field to infer the columns of its type from"
    result = reasons(export)
    assert result.pop(1).startswith("not JSON")
    assert result == {0: nothing, 2: nothing, 3: nothing}
    produce(name, ['{"id": 4}', "{}"], key="A")
    export.run_to_end()
    assert export.rows("A", "kafka_offset", "id") == [(4, 4), (5, None)]
    assert export.everywhere() == Counter((0, offset) for offset in range(6))
    assert conserved(export)
    assert verify(export.job).ok


def test_nested_objects_that_differ_between_tasks_and_batches_widen_an_inferred_type(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    """Another order of keys, a key that is only sometimes there, a key more later: nothing of it is bad."""
    name = topic(partitions=2)
    export.describe(name, types=[type_of("A", schema="infer")], on="bad_record: quarantine, new_column: add")
    produce(name, [event("A", 0, size={"total": 1, "unit": "m"}), event("A", 1, size={"total": 2})], partition=0)
    produce(name, [event("A", 2, size={"unit": "s", "total": 3.5}), event("A", 3, size={})], partition=1)
    export.run_to_end()
    produce(name, [event("A", 4, size={"unit": None, "parts": [{"at": 1}]}), event("A", 5)], partition=0)
    produce(name, [event("A", 6, size={"parts": [{"of": "x", "at": 2}], "total": 7})], partition=1)
    export.run_to_end()
    assert not export.quarantine.exists()
    # File by file: an older one has fewer members.
    files = [pl.read_parquet(file).select("id", "size").rows() for file in data_files(export.root / "A")]
    sizes = {number: size or {} for rows in files for number, size in rows}
    assert [sizes[number].get("total") for number in range(7)] == [1, 2, 3.5, None, None, None, 7]
    assert sizes[6]["parts"] == [{"at": 2, "of": "x"}]
    assert verify(export.job).ok
