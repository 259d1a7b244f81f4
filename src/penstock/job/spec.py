"""The frozen description of a job, which is also the model of its file: each field of an annotated type is a key.

Values are read and checked by `job.reader`; code that builds a spec itself is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Self, TypeAlias, cast

import pyarrow as pa
from typing_extensions import TypeVar

from penstock.errors import InvariantError, UserError
from penstock.job import texts
from penstock.job.expressions import Expression
from penstock.job.faults import Secret as Secret
from penstock.job.schema import read_schema
from penstock.job.storage_options import read_storage
from penstock.job.texts import MessageName as MessageName
from penstock.job.values import (
    Count,
    Date,
    Duration,
    Flag,
    Key,
    Parsed,
    Part,
    Pattern,
    Positive,
    Read,
    Settings,
    Share,
    Size,
    Text,
    Texts,
    duration,
    items,
    matching,
    number,
    one_of,
    positive,
    sections,
    text,
    within,
)

if TYPE_CHECKING:
    from penstock.job.reader import SpecReader

DAY_FOLDER = "day"
"""The name of the folders by which a reader sees the day of an event as a column."""
HEARTBEAT_SECONDS_MIN = 0.5
"""A shorter heartbeat interval cannot be kept over a network."""

DecodeFormat: TypeAlias = Literal["json", "raw", "protobuf", "garmadon", "telegraf", "influx"]
POINT_FORMATS: tuple[DecodeFormat, ...] = ("telegraf", "influx")
"""Those whose records are points of series; records of the others are rows."""
PointTimes: TypeAlias = Literal["auto", "s", "ms", "us", "ns"]
NameStyle: TypeAlias = Literal["opentsdb", "raw"]
Defaults: TypeAlias = Literal["null", "value"]
RouteWay: TypeAlias = Annotated[
    Literal["field", "header", "key", "envelope"], Parsed(lambda value: texts.read_route(value)[0])
]
RoutePath: TypeAlias = Annotated[tuple[str, ...], Key("by"), Parsed(lambda value: texts.read_route(value)[1])]
StartAt: TypeAlias = Literal["earliest", "latest"]
GapPolicy: TypeAlias = Literal["fail", "record"]
TombstonePolicy: TypeAlias = Literal["filter", "row", "quarantine"]
NewColumnPolicy: TypeAlias = Literal["add", "quarantine", "ignore"]
Payload: TypeAlias = Literal["plain", "gzip"]
"""How the bytes of a record are wrapped before the decoder sees them."""
Message: TypeAlias = Annotated[MessageName, Parsed(texts.message_name)]
Percent: TypeAlias = Annotated[
    float, within(number, "a percentage is more than 0 and at most 100", least=1e-9, most=100)
]


def _start(value: object) -> object:
    """A name, or offsets by partition, which are checked with the topics."""
    return value if isinstance(value, dict) else one_of(StartAt).read(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpec:
    """Which topics of a log, and where one without a position begins: by name, or {topic: {partition: offset}}.

    Exactly one of `topics` and `topic_pattern` is given. Each log adds its own fields in its class.
    """

    kind: ClassVar[str]
    """The key under `log:` in a job file."""
    shared: ClassVar[bool] = False
    """Whether the processes of a job can share its partitions: a group that is named turns that on."""
    topics: Texts = ()
    topic_pattern: Pattern | None = None
    start: Annotated[StartAt | Mapping[str, Mapping[int, int]], Parsed(_start)] = "earliest"
    group: Annotated[str, matching(".{1,249}", "longer than 249 characters")] = ""
    """The name under which the log shows the positions of the job to other tools."""
    transactional: bool = False
    """Whether the job expects offsets without a record."""


@dataclass(frozen=True, slots=True)
class KafkaLogSpec(LogSpec):
    kind = "kafka"
    shared = True
    bootstrap: Annotated[str, Parsed(texts.servers)]
    transactional: Flag = field(default=False, kw_only=True)
    client_settings: Annotated[Settings, Key("client")] = field(default_factory=dict)
    """Any setting of librdkafka but those that Penstock decides; authentication and encryption are among them."""


_HEARTBEAT = within(duration, "too short to be kept over a network", "at least 0.5 s", least=HEARTBEAT_SECONDS_MIN)
_WORK_TIMEOUT = within(duration, "too short: a batch may take longer without being stuck", "at least 60 s", least=60)


@dataclass(frozen=True, slots=True)
class ClaimsSpec:
    """How the processes of a job share its partitions through the coordination topic."""

    SHORT: ClassVar[str] = "mode"
    client_id: Annotated[str | None, matching(".{1,255}", "longer than 255 characters")] = None
    """A stable id takes its claims back after a restart; None: randomly generated."""
    heartbeat_seconds: Annotated[float, Key("heartbeat"), _HEARTBEAT] = 10.0
    topic: Annotated[str, texts.TOPIC_NAME] = "__penstock"
    partitions: Annotated[int, within(positive, "more than 1000: every process reads them all", most=1000)] = 8
    """Of the coordination topic, if it has to be created."""
    work_timeout_seconds: Annotated[float, Key("work_timeout"), _WORK_TIMEOUT] = 600.0
    """A process whose work makes no progress for this time leaves the group, and others take its partitions."""
    mode: Literal["static", "group"] = "group"
    """With `static` the job has no claims."""


@dataclass(frozen=True, slots=True)
class BlacklistEntry:
    """Series that are left out: regular expressions that are found in the metric, and in a tag's key and value."""

    name: Pattern = ""
    tags: Annotated[Mapping[str, str], Read(texts.read_patterns)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PointsSpec:
    """How fields of metrics become points of series."""

    timestamps: PointTimes | None = None
    """The unit; `auto` infers it from the size of the number. None: `auto` for `telegraf`, `ns` for `influx`."""
    names: NameStyle = "opentsdb"
    """How names of metrics and their tags are stored."""
    blacklist: Annotated[tuple[BlacklistEntry, ...], sections(BlacklistEntry)] = ()


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    SHORT: ClassVar[str] = "format"
    format: Annotated[DecodeFormat, one_of(DecodeFormat, "raw keeps the bytes of any other format")]
    payload: Payload = "plain"
    descriptors: Annotated[bytes, Read(texts.read_descriptors)] = b""
    """The serialised descriptor set of `protobuf` and `garmadon`."""
    message: Message | None = None
    """Of `protobuf`, for a table of one type; an export names one per type."""
    header: Message | None = None
    """Of `garmadon`: the message of the envelope's header."""
    defaults: Defaults = "null"
    """What a field without presence becomes if it has its default: on the wire it equals an absent one."""
    uri_names: Settings = field(default_factory=dict)
    """Of `garmadon` file system events: cluster names as they are written, for those in the event's uri."""
    points: Annotated[PointsSpec, Part.INLINE] = field(default_factory=PointsSpec)
    """Of `telegraf` and `influx`."""


@dataclass(frozen=True, slots=True)
class SqlSpec:
    """A projection and a row filter over the decoded columns (RULES P4). No `select` keeps every column."""

    select: Texts = ()
    where: Text | None = None


@dataclass(frozen=True, slots=True)
class TableSpec:
    """Where a table is stored. Each kind of table adds its own fields in its class."""

    kind: ClassVar[str]
    """The key under `table:` in a job file."""
    decoders: ClassVar[tuple[DecodeFormat, ...]] = ("json", "raw", "protobuf")
    unused: ClassVar[tuple[str, ...]] = ("place",)
    """Top-level keys of a job file that have no meaning for it."""
    unused_alerts: ClassVar[tuple[str, ...]] = ("failed_writes_percent", "discrepancy_records")
    """Keys of `alerts` that have no meaning for it."""
    many_jobs: ClassVar[bool] = True
    """Whether several jobs may write one table."""
    path: Annotated[str, Read(texts.read_table_path)]
    storage_options: Annotated[Mapping[str, str], Key("storage"), Read(read_storage)] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """A phrase for what the job writes."""
        return self.kind

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which a row is found, in a table with a row per key."""
        return ()

    @property
    def folders(self) -> tuple[str, ...]:
        """Where its tables are stored; no other table may be there."""
        return (self.path,)

    def complete(self, job: JobSpec[Self], reader: SpecReader) -> JobSpec[Self]:
        """Check what depends on the kind, and add the fields and columns of its rows; by default nothing.

        The job may have faults; `reader.states` shows which keys could be read.
        """
        return job


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """Which type a record is of: a field of its JSON, a header, its key, or the marker of its envelope."""

    by: RouteWay
    path: RoutePath = field(default=(), repr=False)
    """Of a field; of a header its one name."""
    unknown: Literal["quarantine", "drop"] = "quarantine"


@dataclass(frozen=True, slots=True)
class DaysSpec:
    """Event-time days in UTC: which times are believed, and when a day is complete."""

    not_before: Date = date(2000, 1, 1)
    late_seconds_max: Annotated[Duration | None, Key("late")] = None
    """Event time before the record's Kafka time; None: any."""
    early_seconds_max: Annotated[Duration, Key("early")] = 86_400.0
    """Event time ahead of the clock of the process."""
    complete_after_seconds: Annotated[Duration, Key("complete_after")] = 7_200.0
    """A day is complete once the watermark is past its end by this."""
    idle_seconds: Annotated[Duration, Key("idle")] = 300.0
    """A partition that has been at its end for this time does not hold the watermark back."""


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When a batch is due."""

    allowed_latency_seconds: Annotated[Duration, Key("allowed_latency")] = 60.0
    min_bytes_per_file: Size = 128 * 1024 * 1024
    max_messages_per_batch: Positive = 100_000
    max_bytes_per_batch: Size = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Policies:
    bad_record: Literal["quarantine", "fail"] = "quarantine"
    gap: GapPolicy = "fail"
    recreated: Literal["fail", "restart"] = "fail"
    tombstone: TombstonePolicy = "filter"
    new_column: NewColumnPolicy = "add"
    bad_share: Share = 0.1
    """The share of a batch that may go to quarantine; with more the job stops before the commit. 1: never."""
    small_files: Literal["compact", "keep"] = "compact"
    """Whether the job merges them itself, or only `penstock compact` does."""
    new_column_share: Share = 0.001
    """With `add`: in how many of a batch's records a field must be to become a column; the others are quarantined."""
    rare_fields: frozenset[tuple[str, ...]] = frozenset()
    """Those in fewer records of the batch that is written: type, which is empty outside of exports, and path."""

    def rare_of(self, name: str) -> frozenset[tuple[str, ...]]:
        """The paths of the rare fields of a type."""
        return frozenset(path[1:] for path in self.rare_fields if path[0] == name)


@dataclass(frozen=True, slots=True)
class AlertLimits:
    """When a job needs a person; None switches a rule off."""

    failed_writes_percent_max: Annotated[Percent | None, Key("failed_writes_percent")] = None
    """Of exports, as are discrepancies."""
    lag_records_max: Annotated[Positive | None, Key("lag_records")] = None
    discrepancy_records_max: Annotated[Positive | None, Key("discrepancy_records")] = None
    age_seconds_max: Annotated[Duration | None, Key("age")] = None
    """Of the oldest unread record."""
    retention_share_max: Annotated[Share, Key("retention_share")] = 0.8
    """How much of the topic's retention that record may have used up."""
    stop_after_seconds: Annotated[Duration, Key("stop_after")] = 600.0
    """How long records may wait beyond `allowed_latency` while nothing moves."""
    window_seconds: Annotated[Duration, Key("window")] = 600.0
    """Over which growing lag is a warning."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The named bounds of a run (I6)."""

    open_writers_max: int = 32
    row_group_bytes_max: int = 32 * 1024 * 1024
    arrow_batch_bytes_max: int = 16 * 1024 * 1024
    stage_age_seconds_max: Annotated[Duration, Key("stage_age")] = 3600.0
    transient_retries_max: Annotated[Count, Key("transient_retries")] = 10
    shutdown_seconds_max: Annotated[Duration, Key("shutdown")] = 60.0


@dataclass(frozen=True, slots=True)
class SparkSpec:
    master: Text | None = None
    """None: the one of Spark's own configuration, or `local[*,4]`."""
    conf: Settings = field(default_factory=dict)


TableT_co = TypeVar("TableT_co", bound=TableSpec, covariant=True, default=TableSpec)
TableT = TypeVar("TableT", bound=TableSpec)


@dataclass(frozen=True, slots=True)
class JobSpec(Generic[TableT_co]):
    """One log to one destination; `JobSpec[SomeSpec]` is a job whose table is known to be of that kind."""

    name: Annotated[str, Key("job"), texts.JOB_NAME]
    log: LogSpec
    decode: Annotated[DecodeSpec, Part.SECTION]
    table: TableT_co
    schema: Annotated[pa.Schema, Read(read_schema)] = field(default_factory=lambda: pa.schema([]))
    """The decoded fields. For `raw` it is one binary field, `value`; of an export it is empty."""
    columns: Annotated[Mapping[str, Expression], Read(texts.read_columns)] = field(default_factory=dict, repr=False)
    """Computed columns: name to parsed expression, as `day(meta.producer.timestamp)`; computed by `flow.columns`."""
    place: Literal["columns", "none"] = "columns"
    """Whether rows have columns for topic, partition and offset of their record."""
    drop: Annotated[frozenset[str], items(text, frozenset)] = frozenset()
    """Decoded fields that columns are computed from, and that are not columns of the table themselves."""
    sql: Annotated[SqlSpec | None, Part.SECTION] = None
    claims: Annotated[ClaimsSpec | None, Part.SECTION] = None
    """None: static, this process owns every partition."""
    flush: Annotated[FlushPolicy, Part.SECTION] = field(default_factory=FlushPolicy)
    on: Annotated[Policies, Part.SECTION] = field(default_factory=Policies)
    alerts: Annotated[AlertLimits, Part.SECTION] = field(default_factory=AlertLimits)
    limits: Annotated[Limits, Part.SECTION] = field(default_factory=Limits)
    spark: Annotated[SparkSpec, Part.SECTION] = field(default_factory=SparkSpec)
    path: Path | None = None
    with_fields: Callable[[Mapping[str, Any]], JobSpec] | None = field(default=None, repr=False, compare=False)
    """Gives the job its fields, as a file states them, while those of `schema: infer` are not known."""


def job_of(job: JobSpec, table: type[TableT]) -> JobSpec[TableT]:
    """The same job, known to have a table of this kind."""
    if not isinstance(job.table, table):
        raise InvariantError(f"job {job.name} has a table of kind {job.table.kind}, expected {table.__name__}")
    return cast("JobSpec[TableT]", job)


def kafka_of(job: JobSpec) -> KafkaLogSpec:
    """The Kafka that the job reads; claims need one, because the processes of a group coordinate through a topic."""
    if not isinstance(job.log, KafkaLogSpec):
        raise UserError(f"job {job.name} does not read Kafka, so it has no claims")
    return job.log
