"""Bad input of an export: each record is filed, in quarantine with its reason, or counted; nothing leaves the root."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.flow.compile import RecordFrame
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import FanoutFlow
from penstock.flow.write.report import REPORT_SCHEMA
from penstock.lake.state import Totals
from penstock.verify import verify
from tests.exports import FIRST_DAY, ExportPipe, event, type_of
from tests.kafka import Produce, Topics
from tests.pipes import Clock

TWO_MEGABYTES = 2_000_000
SINGLY = 8
"""So few doubtful records of a partition are looked at one by one."""
AT = FIRST_DAY.isoformat()
CLOCK = Clock((FIRST_DAY + timedelta(hours=6)).timestamp())
KAFKA_MS = int(FIRST_DAY.timestamp() * 1000)
TOPIC = {"retention.ms": "-1", "max.message.bytes": "8000000"}
"""The records are of a day long ago: retention by time would take them."""
ROW = "{type: string, at: string, id: long, text: string}"
TYPES = [type_of("A", schema=ROW), type_of("B", schema=ROW)]
NO_TYPE = "has no type: no text or whole number at type"


def of_type(value: Any) -> bytes:
    return json.dumps({"type": value, "at": AT, "id": 1}).encode()


def at_time(value: Any) -> bytes:
    return json.dumps({"type": "A", "at": value, "id": 1}).encode()


def not_known(shown: str) -> str:
    return f"its type {shown} is not known"


NOT_AN_OBJECT: list[tuple[bytes, str]] = [
    (b"", "value is empty"),
    (b"not JSON", "not JSON at character 0"),
    (b'{"type": "A", "id": 1', "not JSON at character 21"),
    (b'{"type": "A", "at": "\xff"}', "value is not UTF-8 at byte 21"),
    (b'["A"]', "expected an object, found array"),
    (b'"A"', "expected an object, found string"),
    (b"null", "expected an object, found null"),
    (of_type("A") + of_type("A"), "more than one value in the record"),
    (b'{"type": "A", "deep": ' + b"[" * 600 + b"]" * 600 + b"}", "nested deeper than 500"),
    (b'{"type": "A", "type": "B", "at": "2026-03-01"}', "type: given twice"),
    (b'{"type": "\\ud800", "at": "2026-03-01"}', "type: "),
]
UNKNOWN_TYPE: list[tuple[bytes, str]] = [
    (of_type("Z"), not_known('"Z"')),
    (of_type("a"), not_known('"a"')),
    (of_type("A "), not_known('"A "')),
    (of_type("A/B"), not_known('"A/B"')),
    (of_type("/etc"), not_known('"/etc"')),
    (of_type(".."), not_known('".."')),
    (of_type("../../../outside"), not_known('"../../../outside"')),
    (of_type("A/../../B"), not_known('"A/../../B"')),
    (of_type("_penstock"), not_known('"_penstock"')),
    (of_type(""), not_known('""')),
    (of_type("A\0"), not_known('"A\\u0000"')),
    (of_type("A\n"), not_known('"A\\n"')),
    (of_type("x" * 5_000), not_known(f'"{"x" * 58}…')),
    (of_type(7), not_known('"7"')),
]
WITHOUT_TYPE: list[tuple[bytes, str]] = [
    (b"{}", NO_TYPE),
    (b'{"at": "2026-03-01", "id": 1, "text": "{\\"type\\": \\"A\\"}"}', NO_TYPE),
    (of_type(None), NO_TYPE),
    (of_type(7.5), NO_TYPE),
    (of_type(True), NO_TYPE),
    (of_type({"type": "A"}), NO_TYPE),
    (of_type(["A"]), NO_TYPE),
]
NO_ROW: list[tuple[bytes, str]] = [
    (b'{"type": "A", "at": "2026-03-01", "id": "seven"}', 'id: expected long, found string "seven"'),
    (b'{"type": "A", "at": "2026-03-01", "id": 1.5}', "id: expected long, found number 1.5"),
    (b'{"type": "B", "at": "2026-03-01", "id": {}}', "id: expected long, found object"),
    (b'{"type": "A", "at": "2026-03-01", "id": 1, "id": 2}', "id: given twice"),
    (b'{"type": "A", "id": 1}', "has no event time"),
    (at_time(None), "has no event time"),
    (at_time("yesterday"), 'event time "yesterday" is not a time'),
    (at_time(""), 'event time "" is not a time'),
    (at_time("2026-02-30"), 'event time "2026-02-30" is not a time'),
    (at_time("99999-01-01"), 'event time "99999-01-01" is not a time'),
    (at_time(KAFKA_MS), f"at: expected string, found number {KAFKA_MS}"),
    (b'{"type": "A", "at": "2026-03-01", "id": "' + b"9" * TWO_MEGABYTES + b'"}', "id: expected long, found string"),
]
OUTSIDE: list[tuple[bytes, str]] = [
    (at_time("0001-01-01"), "event time 0001-01-01T00:00:00Z is before 2000-01-01"),
    (at_time("1970-01-01T00:00:00Z"), "event time 1970-01-01T00:00:00Z is before 2000-01-01"),
    (at_time("2026-02-18T11:59:59Z"), "is more than 864000 s before its Kafka time"),
    (at_time("2026-03-03T18:00:01Z"), "is more than 172800 s ahead of the clock"),
    (at_time("2100-01-01T00:00:00Z"), "event time 2100-01-01T00:00:00Z is more than 172800 s ahead of the clock"),
    (at_time("9999-12-31T23:59:59Z"), "ahead of the clock"),
]
BAD = [*NOT_AN_OBJECT, *UNKNOWN_TYPE, *WITHOUT_TYPE, *NO_ROW, *OUTSIDE]
DAYS = "late: 10d, early: 2d"


@pytest.fixture
def deep(tmp_path: Path, bootstrap: str, spark: SparkSession) -> ExportPipe:
    """An export some folders below the test's own, so that what climbs out is still seen."""
    folder = tmp_path / "some" / "folders" / "below"
    folder.mkdir(parents=True)
    return ExportPipe(folder, bootstrap, spark)


def nothing_escaped(export: ExportPipe, top: Path, *types: str) -> bool:
    """Whether the folders of the types are all that stands below the root, and the job all that stands below `top`."""
    outside = [each for each in top.rglob("*") if not each.is_relative_to(export.folder)]
    beside = {each.name for each in export.folder.iterdir()} - {"root_quarantine"}
    inside = {each.name for each in export.root.iterdir()}
    below = [each for each in export.folder.parents if each.is_relative_to(top) and each != top]
    return sorted(outside) == sorted(below) and beside == {"job.yaml", "root"} and inside == {"_penstock", *types}


def totals(export: ExportPipe) -> Totals:
    return sum((each.totals for each in export.state.partitions.values()), Totals())


def reasons(export: ExportPipe) -> dict[tuple[int, int], str]:
    return {
        (partition, offset): error for partition, offset, error in export.quarantined("partition", "offset", "error")
    }


def between(bad: Sequence[bytes | None]) -> list[bytes | str | None]:
    """Good records of two types before and behind every bad one."""
    good = [event("A", 1), event("B", 2)]
    return [*(each for number, one in enumerate(bad) for each in (good[number % 2], one)), event("A", 3)]


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
    found = reasons(deep)
    assert sorted(found) == sorted(expected)
    assert [(place, found[place], why) for place, why in sorted(expected.items()) if why not in found[place]] == []
    assert all(len(reason) < 200 for reason in found.values())
    everything = Counter((number, offset) for number, part in enumerate(parts) for offset in range(2 * len(part) + 1))
    everything[0, 2 * len(sent) + 1] = 1
    assert deep.everywhere() == everything
    assert [len(text) for (text,) in deep.rows("B", "text") if text] == [TWO_MEGABYTES]
    counted = totals(deep)
    assert counted.conserved
    assert (counted.read, counted.quarantined, counted.filtered) == (everything.total(), 2 * len(sent), 0)
    assert nothing_escaped(deep, tmp_path, "A", "B")
    assert verify(deep.job).ok


def test_a_quarantined_record_is_whole(export: ExportPipe, topic: Topics, produce: Produce) -> None:
    name = topic(config=TOPIC)
    produce(name, [of_type("../x")], key=b"\xff", headers=[("h", b"1"), ("h", None)], timestamp_ms=KAFKA_MS)
    export.describe(name)
    export.run_to_end(clock=CLOCK)
    [(found, value, key, headers)] = export.quarantined("topic", "value", "key", "headers")
    assert (found, value, key) == (name, of_type("../x"), b"\xff")
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


def test_a_record_that_breaks_the_job_is_put_aside_alone(
    export: ExportPipe, topic: Topics, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding it takes several Spark jobs, so the batch is small."""
    monkeypatch.setattr("penstock.tables.export.writer.fanout_job", crashing_job)
    name = topic(config=TOPIC)
    produce(name, [event("A", 0), event("B", 1, text="crash")], timestamp_ms=KAFKA_MS)
    export.describe(name, types=TYPES)
    heard = export.run_to_end(clock=CLOCK)
    assert [each["offset"] for each in heard.named("record isolated")] == [1]
    assert export.rows("A", "id") == [(0,)]
    [(place, reason)] = reasons(export).items()
    assert place == (0, 1) and "the decoder has crashed" in reason
    assert totals(export) == Totals(read=2, written=1, quarantined=1)
    assert verify(export.job).ok
