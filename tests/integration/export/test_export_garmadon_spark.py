"""Garmadon's wire format from end to end: its test vectors become rows by type and day, unusual cases too."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

from penstock.watch.verify import verify
from tests.cases.export_garmadon import GOOD, SETTINGS, TYPES, heap, vector_bytes
from tests.support.exports import ExportPipe, data_files
from tests.support.garmadon_descriptors import write_descriptors
from tests.support.kafka import Produce, Topics

FIRST_OFFSET = 101
"""Of the vectors, in their order."""


@pytest.fixture
def garmadon(export: ExportPipe) -> ExportPipe:
    """An export with a descriptor set next to its job file."""
    write_descriptors(export.folder / "garmadon.desc")
    return export


def row_at(export: ExportPipe, folder: str, offset: int) -> tuple[str, dict[str, Any]]:
    """The day folder and the row of an offset, its columns in the order of the file."""
    for path in data_files(export.root / folder):
        for row in pl.read_parquet(path, hive_partitioning=False).to_dicts():
            if row["kafka_offset"] == offset:
                return path.parent.name, row
    raise AssertionError(f"offset {offset} is not in {folder}")


def test_the_vectors_become_the_rows_that_garmadon_writes_in_their_types_and_days(
    garmadon: ExportPipe, topic: Topics, produce: Produce
) -> None:
    """Events of a JVM come before them, as many as give each vector the offset that it names."""
    name = topic()
    produce(name, [heap(init=1, used=number, max=2**63 - 1) for number in range(FIRST_OFFSET)])
    produce(name, vector_bytes(GOOD))
    garmadon.describe(name, types=TYPES, **SETTINGS)
    garmadon.run_to_end()
    for vector in GOOD:
        day, row = row_at(garmadon, vector["hdfs_dir"], vector["kafka_offset"])
        assert day == f"day={datetime.fromtimestamp(vector['timestamp'] // 1000, UTC):%Y-%m-%d}"
        assert row.pop("kafka_partition") == 0
        assert row.pop("kafka_topic")
        shown = {key: "-Infinity" if value == float("-inf") else value for key, value in row.items()}
        assert list(shown.items()) == list(vector["row"].items()), vector["name"]
    assert [file.split("/")[1] for file in garmadon.files("fs")] == ["day=2019-05-13", "day=2019-05-14"]
    # A heap value of 0 is what protobuf calls unset, and null as all such fields are.
    assert garmadon.rows("jvmstats", "hostname", "init", "committed", "used", "max") == [
        ("host", 1, None, number or None, 2**63 - 1) for number in range(FIRST_OFFSET)
    ]
    assert garmadon.everywhere() == Counter((0, offset) for offset in range(FIRST_OFFSET + len(GOOD)))
    assert not garmadon.quarantine.exists()
    assert verify(garmadon.job).ok
