"""`penstock.read` on the real Spark: rows without columns that only Penstock needs, and lookups that read few files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import UserError
from tests.support.keyed_tables import ONE, ZERO, Keyed, row

DEVICES = [f"d{number}" for number in range(24)]
BATCHES, ROWS = 4, 50
"""Each batch has the next rows of every device, like a topic of measurements."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Keyed:
    """Eight buckets, each with a file for each batch."""
    table = Keyed(tmp_path_factory.mktemp("keyed"), "partition_keys: [device], row_keys: [number], buckets: 8")
    for batch in range(BATCHES):
        for device in DEVICES:
            table.put(*(row(number, number * 2, device) for number in range(batch * ROWS, (batch + 1) * ROWS)))
        table.run()
    return table


def values(frame: DataFrame) -> dict[tuple[Any, Any], Any]:
    return {(item["device"], item["number"]): item["value"] for item in frame.collect()}


def test_a_job_file_a_job_and_a_path_are_the_same_dataset(spark: SparkSession, filled: Keyed) -> None:
    expected = filled.values()
    assert len(expected) == len(DEVICES) * BATCHES * ROWS
    for dataset in (filled.job, filled.folder / "keyed.yaml", filled.path):
        frame = penstock.read(spark, dataset)
        assert not {"_bucket", "_sequence"} & set(frame.columns)
        assert values(frame) == expected


Read = Callable[[SparkSession, str], DataFrame]


@pytest.mark.parametrize(
    ("requested", "rows", "files_max"),
    [
        pytest.param(lambda spark, path: penstock.read(spark, path, keys={"device": "d7"}), 200, 4, id="a device"),
        pytest.param(
            lambda spark, path: penstock.read(spark, path, keys={"device": "d7", "number": 123}), 1, 1, id="a row"
        ),
        pytest.param(
            lambda spark, path: penstock.read(spark, path, keys={"device": "d7"}).where("number between 90 and 105"),
            16,
            2,
            id="a range of a device",
        ),
        pytest.param(
            lambda spark, path: penstock.read(spark, path, keys={"device": ["d7", "d8"], "number": [0, 3, 170]}),
            6,
            4,
            id="several of both",
        ),
        pytest.param(
            lambda spark, path: penstock.read(spark, path).where("number = 123"), 24, 8, id="a row of every device"
        ),
        pytest.param(
            lambda spark, path: penstock.read(spark, path, keys={"device": "absent"}), 0, 4, id="an absent device"
        ),
    ],
)
def test_lookups_by_key_read_few_files(
    spark: SparkSession, filled: Keyed, requested: Read, rows: int, files_max: int
) -> None:
    assert len(filled.files()) == 32
    frame = requested(spark, filled.path)
    assert len(frame.inputFiles()) <= files_max
    result = values(frame)
    assert len(result) == rows and result.items() <= filled.values().items()


def test_keys_of_every_type_are_found_by_their_values(spark: SparkSession, tmp_path: Path) -> None:
    """The partition of the log, the start of an hour, a text with a default: the bucket is computed as it was."""
    keys = "partition_keys: [kafka_partition, home, hour], row_keys: [number], buckets: 4"
    schema = "device: string, at: timestamp, number: long, value: long"
    columns = "kafka_partition: kafka.partition, home: \"coalesce(device, 'none')\", hour: hour(at)"
    table = Keyed(tmp_path, keys, schema=schema, columns=columns)
    times = [datetime(2026, 3, 1, hour, 30, tzinfo=UTC) for hour in range(6)]
    for part in (ZERO, ONE):
        for place, at in enumerate(times):
            table.put({"device": "a", "at": at.isoformat(), "number": place, "value": place}, to=part)
            table.put({"at": at.isoformat(), "number": place, "value": -place}, to=part)
    table.run()
    hour = times[3].replace(minute=0)
    frame = penstock.read(spark, table.path, keys={"home": "a", "hour": hour})
    assert [item["value"] for item in frame.collect()] == [3, 3]
    whole = penstock.read(spark, table.path, keys={"home": "none", "hour": hour, "kafka_partition": 1})
    assert [row["value"] for row in whole.collect()] == [-3]
    assert len(whole.inputFiles()) == 1


DAYS = ["0001-01-01", "0999-12-31", "1582-10-04", "1582-10-15", "1900-01-01", "2026-03-01", "9999-12-31"]
TIMES = [f"{day}T01:02:03.000004Z" for day in DAYS]


@pytest.mark.parametrize(("kind", "texts"), [("date", DAYS), ("timestamp", TIMES)])
def test_days_and_times_of_every_year_are_found(
    spark: SparkSession, tmp_path: Path, kind: str, texts: list[str]
) -> None:
    table = Keyed(tmp_path, "row_keys: [at], buckets: 1, chunk_rows: 1", schema=f"at: {kind}, value: long")
    table.put(*({"at": text, "value": number} for number, text in enumerate(texts)))
    table.run()
    read = date.fromisoformat if kind == "date" else datetime.fromisoformat
    for number, text in enumerate(texts):
        asked = text if number % 2 else read(text)
        frame = penstock.read(spark, table.path, keys={"at": asked}).select("value")
        assert [item["value"] for item in frame.collect()] == [number], asked
        assert len(frame.inputFiles()) == 1
    many = penstock.read(spark, table.path, keys={"at": texts * 30})
    assert many.count() == len(texts)


def test_unreadable_files_are_reported(spark: SparkSession, filled: Keyed, tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        (str(tmp_path / "nowhere"), {}, "no Delta table"),
        (filled.path, {"keys": {"value": 1}}, "not a column of the key"),
        (filled.path, {"type": "order"}, "no types"),
        (f"{filled.path}_quarantine_not_there", {"keys": {"device": "a"}}, "no Delta table"),
    ]
    for path, asked, message in cases:
        with pytest.raises(UserError, match=message):
            penstock.read(spark, path, **asked)
