"""What the job file of an export states, frozen: its types, when their files are due, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pyarrow as pa

from penstock.job.expressions import Expression, KafkaField
from penstock.job.kafka_types import UNKNOWN_SCHEMA
from penstock.job.spec import DaysSpec, MessageName, RouteSpec, TableSpec, UnknownTypePolicy

ExportFormat: TypeAlias = Literal["parquet", "delta"]
Compression: TypeAlias = Literal["snappy", "zstd", "gzip", "none"]


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a type with a rhythm of its own writes its files; whatever comes first."""

    events: int | None = None
    seconds: float = 1_800.0
    """A safeguard also where only the others are stated: records of a rare type wait in Kafka, which forgets them."""
    size_bytes: int | None = None
    """Of the records' values as they lie in the log."""


@dataclass(frozen=True, slots=True)
class TypeSpec:
    """One event type: which route values mean it, what its rows look like, and when they are due."""

    name: str
    """Its folder below the root."""
    values: tuple[str, ...]
    schema: pa.Schema | None
    """The decoded fields; None: inferred from the first records and then fixed."""
    event_time: Expression
    message: MessageName | None = None
    """Of `protobuf` and `garmadon`."""
    rotation: Rotation | None = None
    """None: it goes with the job's own flush."""


@dataclass(frozen=True, slots=True)
class AlertLimits:
    """The monitoring rules of seed 000; None switches a rule off."""

    failed_writes_percent_max: float | None = None
    lag_records_max: int | None = None
    discrepancy_records_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSpec(TableSpec):
    """Mixed event types of one log into a table per type and day; `path` is the root of all types."""

    kind = "export"

    route: RouteSpec
    types: Mapping[str, TypeSpec]
    format: ExportFormat = "parquet"
    days: DaysSpec = field(default_factory=DaysSpec)
    cluster: str = ""
    """File names begin with `<cluster>.<topic>.`, or with `<topic>.` alone."""
    retry_seconds: float = 30.0
    """How long a type that could not be written is left alone."""
    compression: Compression = "snappy"
    compact_bytes: int = 256 * 1024 * 1024
    """The size that compaction aims at."""
    alerts: AlertLimits = field(default_factory=AlertLimits)

    @property
    def all_types(self) -> dict[str, TypeSpec]:
        """The stated types, and the table of unknown ones where the policy wants it."""
        if self.route.unknown is not UnknownTypePolicy.TABLE:
            return dict(self.types)
        other = TypeSpec(self.route.unknown_type, (), UNKNOWN_SCHEMA, KafkaField("timestamp"))
        return {**self.types, other.name: other}
