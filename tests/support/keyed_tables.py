"""Jobs with a keyed table over a log in memory: records by key, processes that share partitions, what readers see."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable

from penstock.claims import StaticClaims
from penstock.engine.round import Rounds, Waiting, open_rounds
from penstock.environment import Environment
from penstock.job.spec import JobSpec
from penstock.lake.delta.opening import open_table
from penstock.lake.delta.table import DeltaLog
from penstock.logs.log import Partition
from penstock.proof.findings import VerifyReport
from penstock.proof.subject import Sample
from penstock.tables.registry import load_job
from penstock.watch.verify import verify
from tests.scenarios.local_spark import local_session
from tests.support.memory_log import MemoryLog, MemoryRecord

ZERO, ONE = Partition("events", "id-1", 0), Partition("events", "id-1", 1)
ROUNDS_MAX = 60

JOB = """\
job: {name}
log: {{kafka: {{bootstrap: "nowhere:9092", topics: [events]}}}}
decode: {{format: json}}
schema: {{{schema}}}
columns: {{{columns}}}
table:
  keyed: {{path: "{path}", {keyed}}}
flush: {{max_messages_per_batch: {batch}}}
on: {{bad_share: 1, {on}}}
{more}
"""
SCHEMA = "device: string, number: long, value: long, note: string, gone: boolean, seq: long"
COLUMNS = "kafka_key: kafka.key, kafka_partition: kafka.partition, kafka_offset: kafka.offset"
KEYS = "partition_keys: [device], row_keys: [number]"


class Holding(StaticClaims):
    """The claims of a process that shares the job with others."""

    shared = True

    def __init__(self, *partitions: Partition) -> None:
        self._partitions = partitions

    def held(self, partitions: Iterable[Partition], table_tokens: Mapping[Partition, int]) -> dict[Partition, int]:
        return {
            partition: max(1, table_tokens.get(partition, 0))
            for partition in partitions
            if partition in self._partitions
        }


@dataclass(slots=True)
class Keyed:
    """One job, its log and its table."""

    folder: Path
    keyed: str = KEYS
    schema: str = SCHEMA
    batch: int = 1000
    on: str = "bad_record: quarantine"
    name: str = "keyed"
    columns: str = COLUMNS
    more: str = ""
    """Further lines of the job file."""
    log: MemoryLog = field(default_factory=lambda: MemoryLog({ZERO: {}, ONE: {}}))

    @property
    def path(self) -> str:
        return str(self.folder / "table")

    @property
    def job(self) -> JobSpec:
        file = self.folder / f"{self.name}.yaml"
        values = {"keyed": self.keyed, "schema": self.schema, "batch": self.batch, "on": self.on, "name": self.name}
        file.write_text(JOB.format(path=self.path, columns=self.columns, more=self.more, **values))
        return load_job(file)

    def put(self, *records: Mapping[str, Any] | bytes | None, to: Partition = ZERO, key: bytes | None = None) -> None:
        values = [json.dumps(record).encode() if isinstance(record, Mapping) else record for record in records]
        self.log.append(to, *(MemoryRecord(value, key, at=1_770_000_000.0) for value in values))

    def open(self, environment: Environment | None = None, *partitions: Partition) -> Rounds[Any]:
        claims = Holding(*partitions) if partitions else None
        return open_rounds(self.job, local_session(), environment, claims, lambda job: self.log.view(job.log))

    def run(self, environment: Environment | None = None, *partitions: Partition) -> Rounds[Any]:
        """Rounds until nothing waits."""
        return finish(self.open(environment, *partitions))

    def table(self) -> DeltaLog:
        return open_table(self.job.table, self.name)

    def rows(self) -> list[dict[str, Any]]:
        """What a plain reader sees, in the order of the keys, without columns that only Penstock needs."""
        frame = pl.read_delta(self.path)
        names = [name for name in frame.columns if not name.startswith(("_", "kafka_"))]
        return frame.select(names).sort(names[:2]).to_dicts()

    def values(self) -> dict[tuple[Any, Any], Any]:
        """The values by device and number."""
        rows = self.rows()
        result = {(row["device"], row["number"]): row["value"] for row in rows}
        assert len(result) == len(rows), "a key is there twice"
        return result

    def files(self) -> set[str]:
        return {str(item) for item in DeltaTable(self.path).file_uris()}

    def totals(self, partition: Partition = ZERO) -> tuple[int, int, int, int]:
        """Read, written, quarantined, skipped."""
        result = self.table().state([partition]).of(partition).totals
        assert result.conserved
        return result.read, result.written, result.quarantined, result.skipped

    def verified(self, *, values: bool = True) -> VerifyReport:
        sample = Sample(None) if values else None
        return verify(self.job, values=sample, open_log=lambda job: self.log.view(job.log))


def finish(rounds: Rounds[Any]) -> Rounds[Any]:
    for _ in range(ROUNDS_MAX):
        result = rounds.round(flush_now=True)
        if isinstance(result, Waiting) and result.done:
            return rounds
    raise AssertionError("there was always something due")


def row(number: int, value: int | None, device: str = "a", **more: Any) -> dict[str, Any]:
    return {"device": device, "number": number, "value": value, **more}
