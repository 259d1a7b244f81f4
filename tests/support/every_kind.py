"""One job of each kind of table over one topic, and whether each table holds exactly what the topic holds.

Values are whole numbers: every sum of them is exact, in any order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from tests.support.kafka import Produce
from tests.support.processes import command_json

START = 1_700_006_400
HOSTS = 20
PARTITIONS = 4
KINDS = ("delta", "export", "keyed", "rollup")
_SCHEMA = "{name: string, tags: {host: string}, fields: {value: double}, timestamp: long}"
_JSON = f"decode: json\nschema: {_SCHEMA}\n"
_PARTS = {
    "delta": _JSON,
    "export": f"decode: json\nroute: {{by: field(name)}}\nevent_time: kafka.timestamp\n"
    f"types: {{cpu: {{schema: {_SCHEMA}}}, disk: {{schema: {_SCHEMA}}}}}\n",
    "keyed": f"{_JSON}columns: {{host: tags.host}}\n",
    "rollup": "decode: telegraf\n",
}
_TABLES: Mapping[str, Mapping[str, object]] = {
    "delta": {},
    "export": {},
    "keyed": {"row_keys": ["host"], "sequence": "timestamp", "buckets": 4},
    "rollup": {"windows": ["1m"], "update_grace": "1d"},
}


@dataclass(slots=True)
class EveryKind:
    """The jobs in a folder; their tables are below `root`, and `spark` is the section of that name."""

    folder: Path
    bootstrap: str
    topic: str
    root: str
    storage: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, object] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict)
    batch_records_max: int = 200
    places: list[tuple[int, int]] = field(default_factory=list)

    @property
    def paths(self) -> list[Path]:
        return [self.folder / f"{kind}.yaml" for kind in KINDS]

    def write(self) -> list[str]:
        """Write the job files; gives their paths."""
        for kind, path in zip(KINDS, self.paths, strict=True):
            kafka = {"bootstrap": self.bootstrap, "topics": [self.topic], "client": dict(self.client)}
            table = {"path": f"{self.root}/{kind}", **_TABLES[kind], "storage": dict(self.storage)}
            path.write_text(
                f"job: {kind}\nlog: {{kafka: {json.dumps(kafka)}}}\n{_PARTS[kind]}"
                f"table: {{{kind}: {json.dumps(table)}}}\n"
                f"flush: {{allowed_latency: 100ms, max_messages_per_batch: {self.batch_records_max}}}\n"
                f"limits: {{transient_retries: 20, shutdown: 30s}}\nspark: {json.dumps(dict(self.spark))}\n"
            )
        return [str(path) for path in self.paths]

    def fill(self, produce: Produce, count: int) -> None:
        """Append records, those of a host to one partition."""
        first = len(self.places)
        for partition in range(PARTITIONS):
            numbers = [number for number in range(first, first + count) if number % PARTITIONS == partition]
            self.places += produce(self.topic, [_record(number) for number in numbers], partition=partition)

    def assert_exact(self) -> None:
        """Each table holds what follows from the records that were produced, and `verify` proves it with all values."""
        numbers, count = range(len(self.places)), len(self.places)
        place = ["kafka_partition", "kafka_offset"]
        assert Counter(self._delta("delta").select(place).rows()) == Counter(self.places)
        pattern = f"{self.root}/export/*/day=*/*.parquet"
        assert Counter(pl.read_parquet(pattern, storage_options=self._options).select(place).rows()) == Counter(
            self.places
        )
        last = {f"host-{number % HOSTS}": START + number for number in numbers}
        assert dict(self._delta("keyed").select("host", "timestamp").rows()) == last
        partials = self._delta("rollup_partials")
        assert (partials["count"].sum(), partials["sum"].sum()) == (count, sum(numbers))
        for path in self.paths:
            assert command_json("verify", str(path), "--values", "--all")["ok"], path

    def _delta(self, name: str) -> pl.DataFrame:
        return pl.read_delta(f"{self.root}/{name}", storage_options=self._options)

    @property
    def _options(self) -> dict[str, str] | None:
        return dict(self.storage) or None


def _record(number: int) -> bytes:
    content = {
        "name": ("cpu", "disk")[number % 2],
        "tags": {"host": f"host-{number % HOSTS}"},
        "fields": {"value": number},
        "timestamp": START + number,
    }
    return json.dumps(content).encode()
