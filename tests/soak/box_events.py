"""Records for the black box of exports, and what each of them must become."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any

FIRST_DAY = datetime(2026, 3, 1, tzinfo=UTC)
INFERRED = "experiment"
STATED = ("order", "click", "view", "payment", "refund", "session")
TYPES = (*STATED, INFERRED)
UNNAMED = "added"
"""A type that the job file names later: until then its records are in quarantine, and then they are replayed."""
LATE_SHARE = 0.1
BAD_SHARE = 0.004
UNNAMED_SHARE = 0.01

FIELDS = "{type: string, at: string, id: long, text: string, ratio: double, tags: [string], place: {x: int, y: int}}"
KEYS = {
    "click": "values: [click, tap], ",
    # These two have rotations of their own.
    "payment": "rotation: {events: 150, every: 3s}, ",
    "refund": "rotation: {every: 2s}, ",
}


def types_section(*, type_added: bool) -> str:
    """The types of the job file, before and after it names them all."""
    stated = [f"{name}: {{{KEYS.get(name, '')}schema: {FIELDS}}}" for name in STATED]
    later = [f"{UNNAMED}: {{schema: {FIELDS}}}"] if type_added else []
    return ", ".join([*stated, f"{INFERRED}: {{schema: infer}}", *later])


@dataclass(frozen=True, slots=True)
class Event:
    """One record; a `type` of none means that it belongs into quarantine."""

    value: str
    type: str | None
    day: date
    id: int
    checksum: int


def checksum(body: object) -> int:
    """A checksum that ignores the order of keys, and keys whose value is null."""
    return zlib.crc32(json.dumps(_plain(body), sort_keys=True).encode())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        members = {key: _plain(member) for key, member in value.items()}
        return {key: member for key, member in members.items() if member is not None and member != {}}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def events(seed: int, first_id: int, count: int, day: int) -> Iterator[Event]:
    """Events of a day, some of days before it, a few that belong into quarantine."""
    rng = Random(seed)
    for number in range(first_id, first_id + count):
        of_day = rng.randrange(day) if day and rng.random() < LATE_SHARE else day
        yield _event(rng, number, of_day, newest=day)


def _event(rng: Random, number: int, day: int, newest: int) -> Event:
    at = FIRST_DAY + timedelta(days=day, milliseconds=rng.randrange(86_400_000))
    name = UNNAMED if rng.random() < UNNAMED_SHARE else rng.choice(TYPES)
    body: dict[str, Any] = {"type": name, "at": at.isoformat(timespec="milliseconds"), "id": number}
    body |= _own(rng, newest) if name == INFERRED else _stated(rng)
    if name == "click" and rng.random() < 0.5:
        body["type"] = "tap"
    bad = name != UNNAMED and rng.random() < BAD_SHARE
    if bad:
        # Of no type at all, or of a stated type and against its schema.
        body |= {"type": "unlisted"} if name == INFERRED or rng.random() < 0.5 else {"id": "none"}
    return Event(_json(rng, body), None if bad else name, at.date(), number, checksum(body))


def _stated(rng: Random) -> dict[str, Any]:
    return {
        "text": f"text-{rng.randrange(10**6)}",
        "ratio": rng.randrange(10**6) / 1024,
        "tags": [f"tag-{rng.randrange(9)}" for _ in range(rng.randrange(3))] or None,
        "place": {"x": rng.randrange(100), "y": rng.randrange(100)} if rng.random() < 0.8 else None,
    }


def _own(rng: Random, newest: int) -> dict[str, Any]:
    """Fields that no schema states: nested ones may be absent, and every day brings one that was not there before."""
    inner: dict[str, Any] = {"name": f"name-{rng.randrange(1000)}"}
    optional: dict[str, Any] = {"count": rng.randrange(1000), "flag": rng.random() < 0.5}
    optional |= {f"since_{number}": f"value-{rng.randrange(50)}" for number in range(1, newest + 1)}
    inner |= {key: value for key, value in optional.items() if rng.random() < 0.5}
    detail = {"inner": inner, "total": rng.randrange(10**9), "note": f"note-{rng.randrange(50)}"}
    kept = {key: value for key, value in detail.items() if rng.random() < 0.7}
    return {"detail": kept, "variant": f"v{rng.randrange(5)}"} if kept else {"variant": "none"}


def _json(rng: Random, body: dict[str, Any]) -> str:
    return json.dumps(_shuffled(rng, body))


def _shuffled(rng: Random, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    keys = list(value)
    rng.shuffle(keys)
    return {key: _shuffled(rng, value[key]) for key in keys}
