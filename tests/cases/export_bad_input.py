"""Records that no type of an export can take, each with the reason that quarantine gives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.lake.state import Totals
from tests.support.exports import FIRST_DAY, ExportPipe, event, type_of
from tests.support.pipes import Clock

TWO_MEGABYTES = 2_000_000
AT = FIRST_DAY.isoformat()
CLOCK = Clock((FIRST_DAY + timedelta(hours=6)).timestamp())
KAFKA_MS = int(FIRST_DAY.timestamp() * 1000)
TOPIC = {"retention.ms": "-1", "max.message.bytes": "8000000"}
"""The records are of a day long ago: retention by time would delete them."""
ROW = "{type: string, at: string, id: long, text: string}"
TYPES = [type_of("A", schema=ROW), type_of("B", schema=ROW)]
NO_TYPE = "has no type: no text or whole number at type"


def of_type(value: Any) -> bytes:
    return json.dumps({"type": value, "at": AT, "id": 1}).encode()


def at_time(value: Any) -> bytes:
    return json.dumps({"type": "A", "at": value, "id": 1}).encode()


def unknown_type(shown: str) -> str:
    return f"its type {shown} is not known"


NOT_AN_OBJECT: list[tuple[bytes, str]] = [
    (b"", "value is empty"),
    (b"not JSON", "not JSON at character 0"),
    (b'{"type": "A", "id": 1', "not JSON at character 21"),
    (b'{"type": "A", "at": "\xff"}', "value is not UTF-8 at byte 21"),
    (b'["A"]', "expected an object"),
    (b'"A"', "expected an object"),
    (b"null", "expected an object"),
    (of_type("A") + of_type("A"), "not JSON at character"),
    (b'{"type": "A", "deep": ' + b"[" * 600 + b"]" * 600 + b"}", "nested deeper than 500"),
    (b'{"type": "A", "type": "B", "at": "2026-03-01"}', "type: given twice"),
    (b'{"type": "\\ud800", "at": "2026-03-01"}', "type: "),
]
UNKNOWN_TYPE: list[tuple[bytes, str]] = [
    (of_type("Z"), unknown_type('"Z"')),
    (of_type("a"), unknown_type('"a"')),
    (of_type("A "), unknown_type('"A "')),
    (of_type("A/B"), unknown_type('"A/B"')),
    (of_type("/etc"), unknown_type('"/etc"')),
    (of_type(".."), unknown_type('".."')),
    (of_type("../../../outside"), unknown_type('"../../../outside"')),
    (of_type("A/../../B"), unknown_type('"A/../../B"')),
    (of_type("_penstock"), unknown_type('"_penstock"')),
    (of_type(""), unknown_type('""')),
    (of_type("A\0"), unknown_type('"A\\u0000"')),
    (of_type("A\n"), unknown_type('"A\\n"')),
    (of_type("x" * 5_000), unknown_type(f'"{"x" * 58}…')),
    (of_type(7), unknown_type('"7"')),
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
    (b'{"type": "A", "at": "2026-03-01", "id": "seven"}', "id: expected long, found string"),
    (b'{"type": "A", "at": "2026-03-01", "id": 1.5}', "id: expected long, found number"),
    (b'{"type": "B", "at": "2026-03-01", "id": {}}', "id: expected long, found object"),
    (b'{"type": "A", "at": "2026-03-01", "id": 1, "id": 2}', "id: given twice"),
    (b'{"type": "A", "id": 1}', "has no event time"),
    (at_time(None), "has no event time"),
    (at_time("yesterday"), 'event time "yesterday" is not a time'),
    (at_time(""), 'event time "" is not a time'),
    (at_time("2026-02-30"), 'event time "2026-02-30" is not a time'),
    (at_time("99999-01-01"), 'event time "99999-01-01" is not a time'),
    (at_time(KAFKA_MS), "at: expected string, found number"),
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


def deep_export(top: Path, bootstrap: str, spark: SparkSession) -> ExportPipe:
    """An export some folders below `top`, so that files outside its root are noticed."""
    folder = top / "some" / "folders" / "below"
    folder.mkdir(parents=True)
    return ExportPipe(folder, bootstrap, spark)


def nothing_escaped(export: ExportPipe, top: Path, *types: str) -> bool:
    """Whether only folders of types are below the root, and only files of the job below `top`."""
    outside = [item for item in top.rglob("*") if not item.is_relative_to(export.folder)]
    siblings = {path.name for path in export.folder.iterdir()}
    inside = {path.name for path in export.root.iterdir()}
    below = [parent for parent in export.folder.parents if parent.is_relative_to(top) and parent != top]
    return sorted(outside) == sorted(below) and siblings == {"job.yaml", "root"} and inside == {"_penstock", *types}


def totals(export: ExportPipe) -> Totals:
    return sum((partition.totals for partition in export.state.partitions.values()), Totals())


def reasons(export: ExportPipe) -> dict[tuple[int, int], str]:
    return {
        (partition, offset): error for partition, offset, error in export.quarantined("partition", "offset", "error")
    }


def between(bad: Sequence[bytes | None]) -> list[bytes | str | None]:
    """Good records of two types before and after every bad one."""
    good = [event("A", 1), event("B", 2)]
    return [*(record for number, one in enumerate(bad) for record in (good[number % 2], one)), event("A", 3)]
