"""Bad input of an export: each record is filed, in quarantine with its reason, or counted; nothing leaves the root."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.flow.compile import RecordFrame
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import FanoutFlow
from penstock.flow.write.report import REPORT_SCHEMA
from penstock.lake.state import Totals
from penstock.watch.verify import verify
from tests.cases.export_bad_input import (
    AT,
    CLOCK,
    DAYS,
    KAFKA_MS,
    NO_ROW,
    NOT_AN_OBJECT,
    OUTSIDE,
    TOPIC,
    TWO_MEGABYTES,
    TYPES,
    UNKNOWN_TYPE,
    WITHOUT_TYPE,
    between,
    deep_export,
    nothing_escaped,
    of_type,
    reasons,
    totals,
)
from tests.support.exports import ExportPipe, event
from tests.support.kafka import Produce, Topics

SINGLY = 8
"""At most so many suspicious records of a partition are tried one by one."""


BAD = [*NOT_AN_OBJECT, *UNKNOWN_TYPE, *WITHOUT_TYPE, *NO_ROW, *OUTSIDE]


@pytest.fixture
def deep(tmp_path: Path, bootstrap: str, spark: SparkSession) -> ExportPipe:
    return deep_export(tmp_path, bootstrap, spark)


def test_every_kind_of_bad_record_is_quarantined_with_its_reason_and_the_good_ones_between_are_filed(
    deep: ExportPipe, tmp_path: Path, topic: Topics, produce: Produce
) -> None:
    """All in one partition, and again a few to a partition: what becomes of a record does not depend on the others."""
    sent = [*BAD, (None, "value is null (a tombstone)")]
    parts = [sent, *(sent[start : start + SINGLY] for start in range(0, len(sent), SINGLY))]
    name = topic(partitions=len(parts), config=TOPIC)
    large = json.dumps({"type": "B", "at": AT, "id": 4, "text": "y" * TWO_MEGABYTES})
    for number, part in enumerate(parts):
        values = between([value for value, _ in part])
        produce(name, [*values, large] if not number else values, partition=number, timestamp_ms=KAFKA_MS)
    deep.describe(name, types=TYPES, days=DAYS, on="tombstone: quarantine, new_column: ignore")
    deep.run_to_end(clock=CLOCK)
    expected = {
        (number, 2 * place + 1): reason for number, part in enumerate(parts) for place, (_, reason) in enumerate(part)
    }
    result = reasons(deep)
    assert sorted(result) == sorted(expected)
    assert [(place, result[place], why) for place, why in sorted(expected.items()) if why not in result[place]] == []
    assert all(len(reason) < 200 for reason in result.values())
    everything = Counter((number, offset) for number, part in enumerate(parts) for offset in range(2 * len(part) + 1))
    everything[0, 2 * len(sent) + 1] = 1
    assert deep.everywhere() == everything
    assert [len(text) for (text,) in deep.rows("B", "text") if text] == [TWO_MEGABYTES]
    counted = totals(deep)
    assert counted.conserved
    assert (counted.read, counted.quarantined, counted.filtered) == (everything.total(), 2 * len(sent), 0)
    assert nothing_escaped(deep, tmp_path, "A", "B")
    assert verify(deep.job).ok


def test_a_quarantined_record_is_stored_unchanged(export: ExportPipe, topic: Topics, produce: Produce) -> None:
    name = topic(config=TOPIC)
    produce(name, [of_type("../x")], key=b"\xff", headers=[("h", b"1"), ("h", None)], timestamp_ms=KAFKA_MS)
    export.describe(name)
    export.run_to_end(clock=CLOCK)
    [(topic_name, value, key, headers)] = export.quarantined("topic", "value", "key", "headers")
    assert (topic_name, value, key) == (name, of_type("../x"), b"\xff")
    assert headers == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]


def crashing_job(records: RecordFrame, flow: FanoutFlow) -> DataFrame:
    """The Spark job of an export with a decoder that breaks at some bytes."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def looked_at() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for row in batch.select(["topic", "partition", "offset", "value"]).to_pylist():
                    aside = flow.poison.get((row["topic"], row["partition"]), {})
                    if b"crash" in row["value"] and row["offset"] not in aside:
                        raise RuntimeError("the decoder has crashed")
                yield batch

        return fanout_stage(flow)(looked_at())

    return records.map(stage, REPORT_SCHEMA)


def test_only_the_record_that_breaks_the_job_is_quarantined(
    export: ExportPipe, topic: Topics, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding it takes several Spark jobs, so the batch is small."""
    monkeypatch.setattr("penstock.tables.export.writer.fanout_job", crashing_job)
    name = topic(config=TOPIC)
    produce(name, [event("A", 0), event("B", 1, text="crash")], timestamp_ms=KAFKA_MS)
    export.describe(name, types=TYPES)
    recorder = export.run_to_end(clock=CLOCK)
    assert [item["offset"] for item in recorder.named("record isolated")] == [1]
    assert export.rows("A", "id") == [(0,)]
    [(place, reason)] = reasons(export).items()
    assert place == (0, 1) and "the decoder has crashed" in reason
    assert totals(export) == Totals(read=2, written=1, quarantined=1)
    assert verify(export.job).ok
