"""Bad input of an export: each record is filed, in quarantine with its reason, or counted; nothing leaves the root."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.errors import UserError
from penstock.job.faults import JobFileError
from penstock.lake.state import Totals
from penstock.tables.registry import load_job
from penstock.verify import verify
from tests.exports import FIRST_DAY, ExportPipe, event, export_job, type_of
from tests.kafka import Produce, Topics
from tests.pipes import Clock

TWO_MEGABYTES = 2_000_000
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


def test_records_that_are_dropped_by_policy_are_counted(
    deep: ExportPipe, tmp_path: Path, topic: Topics, produce: Produce
) -> None:
    """Unknown types, times out of bounds and tombstones are dropped; what is broken is never dropped."""
    name = topic(config=TOPIC)
    sent = [*UNKNOWN_TYPE, *WITHOUT_TYPE, *OUTSIDE, *NOT_AN_OBJECT, *NO_ROW]
    produce(name, between([*(value for value, _ in sent), None]), timestamp_ms=KAFKA_MS)
    days = f"{DAYS}, outside: drop"
    deep.describe(name, types=TYPES, route="unknown: drop", days=days, on="tombstone: filter, new_column: ignore")
    deep.run_to_end(clock=CLOCK)
    dropped = len(UNKNOWN_TYPE) + len(WITHOUT_TYPE) + len(OUTSIDE)
    broken = range(dropped, len(sent))
    assert sorted(reasons(deep)) == [(0, 2 * number + 1) for number in broken]
    assert deep.everywhere() == Counter(
        [(0, 2 * number) for number in range(len(sent) + 2)] + [(0, 2 * number + 1) for number in broken]
    )
    counted = totals(deep)
    assert counted.conserved
    assert (counted.filtered, counted.quarantined) == (dropped + 1, len(broken))
    assert nothing_escaped(deep, tmp_path, "A", "B")
    assert verify(deep.job).ok


def test_unknown_types_kept_in_a_table_of_their_own_are_rows_of_it_and_never_folders(
    deep: ExportPipe, tmp_path: Path, topic: Topics, produce: Produce
) -> None:
    name = topic(config=TOPIC)
    unknown = [*UNKNOWN_TYPE, *WITHOUT_TYPE]
    sent = [*(value for value, _ in unknown), *(value for value, _ in NOT_AN_OBJECT)]
    produce(name, between(sent), timestamp_ms=KAFKA_MS)
    # Filed by its Kafka time, which is as little believed as an event time.
    produce(name, [of_type("Z")], timestamp_ms=1_000)
    deep.describe(name, types=TYPES, route="unknown: table, unknown_type: strange", days=DAYS)
    deep.run_to_end(clock=CLOCK)
    assert deep.rows("strange", "kafka_offset", "value") == [
        (2 * number + 1, value) for number, (value, _) in enumerate(unknown)
    ]
    kinds = [kind for (kind,) in deep.rows("strange", "type")]
    assert kinds == [*(json.loads(value)["type"] for value, _ in UNKNOWN_TYPE[:-1]), "7", *[None] * len(WITHOUT_TYPE)]
    assert deep.files("strange") == [f"strange/day=2026-03-01/0.{2 * len(unknown) - 1}.parquet"]
    last = 2 * len(sent) + 1
    found = reasons(deep)
    assert sorted(found) == [(0, 2 * number + 1) for number in range(len(unknown), len(sent))] + [(0, last)]
    assert "1970-01-01" in found[0, last]
    assert deep.everywhere() == Counter((0, offset) for offset in range(last + 1))
    assert totals(deep).conserved
    assert nothing_escaped(deep, tmp_path, "A", "B", "strange")
    assert verify(deep.job).ok


def test_a_row_of_a_day_that_is_over_is_filed_in_that_day(export: ExportPipe, topic: Topics, produce: Produce) -> None:
    name = topic(config=TOPIC)
    export.describe(name)
    produce(name, [event("A", 0), event("A", 1, day=1), event("A", 2, day=2), event("A", 3)])
    export.run_to_end()
    produce(name, [event("A", 4, day=3), event("A", 5)])
    export.run_to_end()
    found = [(number, str(day)) for number, day in export.rows("A", "id", "day")]
    first = "2026-03-01"
    assert found == [(0, first), (1, "2026-03-02"), (2, "2026-03-03"), (3, first), (4, "2026-03-04"), (5, first)]
    assert export.files("A")[:2] == [f"A/day={first}/0.3.parquet", f"A/day={first}/0.5.parquet"]
    assert verify(export.job).ok


def test_a_job_that_is_to_stop_at_a_bad_record_writes_nothing_of_the_batch(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic(config=TOPIC)
    produce(name, [event("A", 0), of_type("../x"), event("B", 2)])
    export.describe(name, on="bad_record: fail")
    with pytest.raises(UserError, match=r"offset 1: its type \"../x\" is not known"):
        export.run_to_end()
    assert (export.files(), (export.quarantine / "_delta_log").exists()) == ([], False)
    export.describe(name)
    export.run_to_end()
    assert export.everywhere() == Counter((0, offset) for offset in range(3))


@pytest.mark.parametrize(
    "kind", ["a/b", "..", "../b", "a..b", ".", "/b", "_penstock", '""', "'a b'", '"a\\0"', "'a\\b'"]
)
def test_a_type_that_could_leave_its_folder_is_refused_with_the_job_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(export_job("localhost:1", tmp_path / "root", "t", types=[type_of(kind, values="[x]")]))
    with pytest.raises(JobFileError) as caught:
        load_job(path)
    assert [fault.message for fault in caught.value.faults] == ["cannot be the name of a folder"]
