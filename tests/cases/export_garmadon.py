"""Garmadon's vectors, and the export that files them by type and day."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.garmadon_descriptors import BODIES, HEADER, event, garmadon_descriptors, serialised

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "garmadon-vectors.json").read_text(encoding="utf-8")
)
GOOD = [vector for vector in VECTORS if "row" in vector]
FOLDERS = {1001: "jvmstats", **{vector["type_marker"]: vector["hdfs_dir"] for vector in GOOD}}
SETTINGS = {
    "decode": f"{{format: garmadon, descriptors: garmadon.desc, header: {HEADER.name}}}",
    "by": "envelope",
    "event_time": "timestamp_millis(timestamp)",
}
DESCRIPTORS = garmadon_descriptors()
NOON_MS = 1_772_366_400_000
"""2026-03-01T12:00:00Z."""


def message_type(folder: str, marker: int) -> str:
    body = BODIES[marker]
    return f"{folder}: {{values: [{marker}], message: '{f'{body.file}:' if body.file else ''}{body.name}'}}"


TYPES = [message_type(folder, marker) for marker, folder in FOLDERS.items()]


def heap(**values: int) -> bytes:
    properties = [{"name": name, "value": str(value)} for name, value in values.items()]
    body = serialised(
        DESCRIPTORS, BODIES[1001], section=[{"name": "heap", "property": properties}, {"name": "threads"}]
    )
    return event(1001, NOON_MS, serialised(DESCRIPTORS, HEADER, hostname="host"), body)


def vector_bytes(vectors: Sequence[dict[str, Any]]) -> list[bytes]:
    return [bytes.fromhex(vector["value_hex"]) for vector in vectors]
