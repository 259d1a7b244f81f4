"""A job with each kind of table on a real broker, with a few records each: bad ones, late ones, changed rows."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from penstock import api
from tests.support.kafka import Produce, Topics

DAY = datetime(2026, 3, 1, tzinfo=UTC)
DAYS = 12
PATHS = ("/tea", "/coffee", "/cake", "/login", "/checkout")
SCRIPT = "<script>document.title = 'run'</script>"
"""In topics' records, which pages must show as text."""

JOBS = {
    "web": """
schema: {{method: string, url: string, status: int, at: timestamp}}
columns: {{date: day(at)}}
table: {{delta: {{path: {lake}/web, partition_by: [date]}}}}
on: {{bad_share: 1, new_column: quarantine}}
claims: {{heartbeat: 1s, topic: "{coordination}", partitions: 1}}
""",
    "shop": """
route: {{by: field(meta.type)}}
event_time: meta.at
types:
  order: {{schema: {{meta: {{type: string, at: string}}, customer: string, price: "decimal(10,2)"}}}}
  click: {{schema: {{meta: {{type: string, at: string}}, url: string}}}}
days: {{complete_after: 1h}}
table: {{export: {{path: {lake}/shop}}}}
on: {{bad_share: 1}}
""",
    "devices": """
schema: {{device: string, temperature: double, removed: boolean, version: long}}
table: {{keyed: {{path: {lake}/devices, row_keys: [device], sequence: version, delete: removed, buckets: 8}}}}
on: {{bad_share: 1}}
""",
    "metrics": """
table: {{rollup: {{path: {lake}/metrics, windows: [1m, 10m], lateness: 0s, update_grace: 1d}}}}
on: {{bad_share: 1}}
""",
}


@dataclass(slots=True)
class ConsoleJobs:
    """The folder has a job file for each name in `JOBS`, whose topic has two partitions."""

    folder: Path
    bootstrap: str
    tag: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def __post_init__(self) -> None:
        for name in JOBS:
            Topics(self.bootstrap)(2, name=self.topic(name))
            self.write_file(name)

    def topic(self, name: str) -> str:
        return f"{name}_{self.tag}"

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    @property
    def paths(self) -> dict[str, Path]:
        return {name: self.path(name) for name in JOBS}

    def write_file(self, name: str, before: str = "", after: str = "") -> None:
        """Write a job file with a part of it replaced."""
        decode = "telegraf" if name == "metrics" else "json"
        group = f", group: {self.topic(name)}" if name == "web" else ""
        head = f'job: {name}\nlog: {{kafka: {{bootstrap: "{self.bootstrap}", topics: [{self.topic(name)}]{group}}}}}\n'
        body = JOBS[name].format(lake=self.folder / "lake", coordination=f"claims_{self.tag}")
        spark = 'spark: {master: "local[2]"}\n'
        self.path(name).write_text(f"{head}decode: {decode}{body}{spark}".replace(before, after) if before else
                                   f"{head}decode: {decode}{body}{spark}")  # fmt: skip

    def send(self, count: int = 40) -> None:
        """Send records of every job: about `count` each, the same every time."""
        rng = random.Random(7)
        produce = Produce(self.bootstrap)
        for name, records in (
            ("web", self._web(count, rng)), ("shop", self._shop(count, rng)), ("devices", self._devices(count, rng)),
            ("metrics", self._metrics(count)),
        ):  # fmt: skip
            halves: tuple[list[str], list[str]] = ([], [])
            for number, record in enumerate(records):
                halves[number % 2].append(record)
            for partition, values in enumerate(halves):
                produce(self.topic(name), values, partition)

    def run(self, spark: SparkSession) -> None:
        api.run(*self.paths.values(), spark=spark)

    def _web(self, count: int, rng: random.Random) -> Iterator[str]:
        for number in range(count):
            record: dict[str, object] = {
                "method": "GET",
                "url": rng.choice(PATHS),
                "status": rng.choice((200, 200, 204, 404, 500)),
                "at": (DAY + timedelta(minutes=number)).isoformat(),
            }
            match number % 10:
                case 3:
                    record["status"] = f"{record['status']} OK"
                case 6:
                    record["referrer"] = SCRIPT
            text = json.dumps(record)
            yield text[:-9] if number % 20 == 15 else text

    def _shop(self, count: int, rng: random.Random) -> Iterator[str]:
        for number in range(count):
            at = DAY + timedelta(days=number * DAYS / count, hours=rng.random())
            kind = rng.choice(("order", "click", "click"))
            own = {"customer": f"c{rng.randrange(50)}", "price": "9.50"} if kind == "order" else {"url": "/tea"}
            yield json.dumps({"meta": {"type": kind, "at": at.isoformat()}, **own})

    def _devices(self, count: int, rng: random.Random) -> Iterator[str]:
        for number in range(count):
            device = f"d{number % max(4, count // 3)}"
            temperature = round(15 + 10 * rng.random(), 1)
            removed = number > count // 2 and number % 13 == 0
            yield json.dumps({"device": device, "temperature": temperature, "removed": removed, "version": number})

    def _metrics(self, count: int) -> Iterator[str]:
        for number in range(count):
            at = int(DAY.timestamp()) + number * 30
            fields = {"user": 10.0 + number % 7}
            yield json.dumps({"name": "cpu", "tags": {"host": f"h{number % 3}"}, "fields": fields, "timestamp": at})
