"""Tasks of exports as the tests of this folder build and run them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import DEFAULT_LIMITS, FanoutFlow, RoutedSlice, TypeFlow
from penstock.flow.route.footers import WrittenFile, read_footer
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.pool import PoolLimits
from penstock.flow.write.report import UNROUTED, Share, TaskReport, decode_report
from penstock.job.kafka_types import HEADERS_TYPE
from penstock.job.spec import DaysSpec, DecodeSpec, Policies, RouteSpec
from penstock.job.sql_text import parse_expression as parse
from penstock.storage import open_storage

KEY = ("orders", 3)
TOPIC_ID = "A" * 22
NOW_MS = 1_767_787_200_000
"""2026-01-07T12:00:00Z, which is also when every record was written."""

Record = Mapping[str, Any] | bytes | None


def kafka_part(
    values: Sequence[Record],
    first: int = 100,
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[object] | None = None,
) -> pa.RecordBatch:
    """Records of partition 3 of `orders`, with offsets from `first` on; mappings are written as JSON."""
    count = len(values)
    texts = [json.dumps(value).encode() if isinstance(value, Mapping) else value for value in values]
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["orders"] * count, pa.string()),
            "partition": pa.array([3] * count, pa.int32()),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "timestamp": pa.array([NOW_MS * 1000] * count, pa.timestamp("us", "UTC")),
            "key": pa.array(keys or [None] * count, pa.binary()),
            "value": pa.array(texts, pa.binary()),
            "headers": pa.array(headers or [None] * count, HEADERS_TYPE),
        }
    )


def type_flow(name: str, schema: pa.Schema | None, **changes: Any) -> TypeFlow:
    """A type whose route value is its name, filed by the Kafka time by default."""
    target = None if schema is None else pa.schema([*schema, ("offset", pa.int64())])
    facts: dict[str, Any] = {
        "values": (name,),
        "decoded": schema,
        "target": target,
        "event_time": parse("kafka.timestamp"),
        **changes,
    }
    return TypeFlow(name, **facts)


def fanout_flow(
    folder: Path, types: Iterable[TypeFlow], piece: RoutedSlice | None = None, **changes: Any
) -> FanoutFlow:
    named = {item.name: item for item in types}
    whole = RoutedSlice(TOPIC_ID, 100, 1_000_000, 1, dict.fromkeys(named, 100))
    limits = {field.name: changes.pop(field.name) for field in fields(PoolLimits) if field.name in changes}
    facts: dict[str, Any] = {
        "job": "shop",
        "batch_id": "b1",
        "decode": DecodeSpec("json"),
        "on": Policies(),
        "route": RouteSpec("field", ("type",)),
        "types": named,
        "columns": {"offset": parse("kafka.offset")},
        "days": DaysSpec(),
        "now_ms": NOW_MS,
        "root_url": str(folder / "root"),
        "staged_folder": "_staged",
        "quarantine_url": str(folder / "quarantine"),
        "slices": {KEY: piece or whole},
        "limits": replace(DEFAULT_LIMITS, **limits),
        **changes,
    }
    return FanoutFlow(**facts)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task reports, and what its files hold."""

    flow: FanoutFlow
    report: TaskReport

    @property
    def shares(self) -> Mapping[str, Share]:
        return self.report.shares.get(KEY, {})

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [row for file in self.shares[name].files for row in self.table(file).to_pylist()]

    def table(self, file: StagedFile) -> pa.Table:
        return pq.ParquetFile(Path(self.flow.root_url) / file.path).read()

    def written(self, file: StagedFile) -> WrittenFile:
        """What the footer of a file shows."""
        footer, _ = read_footer(open_storage(self.flow.root_url, {}), file.path)
        return footer.written[0]

    def offsets(self, name: str) -> list[int]:
        return [row["offset"] for row in self.rows(name)] if name in self.shares else []

    def bad(self, name: str = UNROUTED) -> dict[int, str]:
        """The quarantined offsets and why."""
        files = self.shares[name].quarantine_files if name in self.shares else ()
        tables = [pq.ParquetFile(Path(self.flow.quarantine_url) / file.path).read() for file in files]
        return {row["offset"]: row["error"] for table in tables for row in table.to_pylist()}


def run(flow: FanoutFlow, *batches: pa.RecordBatch) -> Outcome:
    """Run a task over the batches and see that it conserves what it read."""
    (answer,) = fanout_stage(flow)(batches)
    outcome = Outcome(flow, decode_report(answer.column("report")[0].as_py(), TaskReport))
    for name, share in outcome.shares.items():
        assert share.counts.written == sum(file.rows for file in share.files) == sum(share.days.values())
        assert share.counts.quarantined == sum(file.rows for file in share.quarantine_files)
        only_counted = name != UNROUTED and (share.failed or (not share.files and not share.quarantine_files))
        assert only_counted or share.counts.conserved
    return outcome
