"""Envelopes as Debezium writes them, of a table that changes at random; and the documented job that copies it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

EXAMPLE = Path(__file__).parents[2] / "examples" / "change-data" / "job.yaml"
Row = dict[str, Any]


def documented_job(bootstrap: str, topic: str, path: str, *, wrapped: bool) -> str:
    """The job file of the example, for another topic and table; `wrapped`: as for `schemas.enable` (docs/keyed.md)."""
    job = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8").replace("\non:", '\n"on":'))
    job["job"] = "customers"
    job["log"] = {"kafka": {"bootstrap": bootstrap, "topics": [topic]}}
    job["table"]["keyed"]["path"] = path
    job["flush"] = {"max_messages_per_batch": 50}
    if wrapped:
        fields = job["drop"]
        columns = {name: _below(text, fields) for name, text in job["columns"].items()}
        job |= {"schema": {"payload": job["schema"]}, "columns": {"op": "payload.op", **columns}, "drop": ["payload"]}
    return yaml.safe_dump(job, sort_keys=False)


def _below(text: str, fields: list[str]) -> str:
    for name in fields:
        text = text.replace(f"{name}.", f"payload.{name}.")
    return text


@dataclass(slots=True)
class ChangeData:
    """A database's table and the records of its changes: Kafka key and value."""

    chance: random.Random
    wrapped: bool = False
    rows: dict[int, Row] = field(default_factory=dict)
    late_reads: int = 0
    tombstones: int = 0
    _lsn: int = 1000
    _last_id: int = 0
    _read: list[tuple[Row, int]] = field(default_factory=list)
    """What a snapshot has read, and not yet sent."""

    def changes(self, count: int) -> Iterator[tuple[bytes, bytes | None]]:
        for _ in range(count):
            yield from self._change()

    def _change(self) -> Iterator[tuple[bytes, bytes | None]]:
        act = self.chance.choice("ccuuudkrrR") if self.rows else "c"
        if act == "R":
            # A snapshot reads now; what it read is sent later, after changes that are newer.
            self._read = [(row, self._lsn) for row in self.rows.values()]
            self.chance.shuffle(self._read)
        elif act == "r" and self._read:
            row, lsn = self._read.pop()
            self.late_reads += self.rows.get(row["id"]) != row
            yield self._record("r", None, row, lsn)
        elif act == "c":
            yield self._create(self._fresh_id())
        elif act == "u":
            before = self.chance.choice(list(self.rows.values()))
            after = self.rows[before["id"]] = self._row(before["id"])
            yield self._record("u", before, after)
        elif act in "dk":
            before = self.rows.pop(self.chance.choice(list(self.rows)))
            yield self._record("d", before, None)
            self.tombstones += 1
            yield self._key(before["id"]), None
            if act == "k":
                yield self._create(self._fresh_id())

    def _fresh_id(self) -> int:
        """Most often a new one; a deleted one may be inserted again."""
        free = sorted(set(range(1, self._last_id + 1)) - set(self.rows))
        if free and self.chance.random() < 0.3:
            return self.chance.choice(free)
        self._last_id += 1
        return self._last_id

    def _create(self, number: int) -> tuple[bytes, bytes | None]:
        after = self.rows[number] = self._row(number)
        return self._record("c", None, after)

    def _row(self, number: int) -> Row:
        text = f"{self.chance.randrange(10**6)}"
        return {"id": number, "name": f"name {text}", "email": self.chance.choice([None, f"{text}@example.org"])}

    def _record(self, op: str, before: Row | None, after: Row | None, lsn: int | None = None) -> tuple[bytes, bytes]:
        if lsn is None:
            self._lsn += self.chance.randrange(1, 50)
            lsn = self._lsn
        source = {"connector": "postgresql", "db": "shop", "table": "customers", "txId": lsn // 10, "lsn": lsn}
        envelope = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1_770_000_000_000}
        value = {"schema": {"type": "struct", "fields": []}, "payload": envelope} if self.wrapped else envelope
        [number] = {item["id"] for item in (before, after) if item is not None}
        return self._key(number), json.dumps(value).encode()

    def _key(self, number: int) -> bytes:
        return json.dumps({"id": number}).encode()
