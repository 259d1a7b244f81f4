"""Slices of a small made-up log of mixed types, staged and proposed to an export's ledger as the engine would."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.environment import Environment, new_batch_id
from penstock.flow.write.manifest import Counts, StagedFile
from penstock.flow.write.report import UNROUTED, Share
from penstock.job.expressions import KafkaField
from penstock.job.spec import DaysSpec, DecodeSpec, JobSpec, KafkaLogSpec, RouteSpec
from penstock.lake.proposal import Outcome, StartPart
from penstock.lake.storage import Storage
from penstock.logs.log import Partition, Slice
from penstock.tables.export.ledger.names import Places
from penstock.tables.export.ledger.proposal import LedgerPart, RoutedPart
from penstock.tables.export.ledger.state import Cause, LedgerState
from penstock.tables.export.spec import ExportSpec, TypeSpec, TypeStart
from penstock.tables.export.table import ExportTable

EVENTS = Partition("events", "life-1", 0)
RECORD_BYTES = 10
ROWS = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])


@dataclass(frozen=True, slots=True)
class Event:
    """One record of the made-up log; `kind` may be a type that the job does not know."""

    offset: int
    kind: str
    day: str = "2026-03-01"
    at_ms: int | None = None


def run_of(kind: str, start: int, end: int, day: str = "2026-03-01") -> list[Event]:
    """One event of a type at each offset of `[start, end)`."""
    return [Event(offset, kind, day) for offset in range(start, end)]


def export_job(
    root: str,
    types: Iterable[str],
    name: str = "garmadon",
    cluster: str = "",
    start: TypeStart | None = None,
    days: DaysSpec | None = None,
) -> JobSpec[ExportSpec]:
    specs = {each: TypeSpec(each, (each,), ROWS, KafkaField("timestamp"), start=start) for each in types}
    route = RouteSpec("header", ("type",))
    return JobSpec(
        name=name,
        log=KafkaLogSpec("nowhere:9092", topics=("events",)),
        decode=DecodeSpec("raw"),
        schema=pa.schema([]),
        columns={},
        table=ExportSpec(root, route=route, types=specs, days=days or DaysSpec(), cluster=cluster),
    )


def open_table(
    storage: Storage, types: Iterable[str], environment: Environment | None = None, **options: object
) -> ExportTable:
    """A process's view of the export below the storage's root; waits between attempts take no time."""
    job = export_job(storage.url, types, **options)  # type: ignore[arg-type]
    return ExportTable(job, environment or Environment(sleep=lambda _: None), storage)


def begun(table: ExportTable, partition: Partition = EVENTS, offset: int = 0, token: int = 1) -> ExportTable:
    """The table with its types entered and a first position."""
    table.agree_on_types()
    outcome = table.land(new_batch_id(), (StartPart(partition, offset, token),))
    assert outcome.refused == ()
    return table


Stage = Callable[[str, str, Sequence[Event], Slice], StagedFile]


def named_only(kind: str, day: str, events: Sequence[Event], piece: Slice) -> StagedFile:
    """A staged file that is only told of: enough where nobody renames it."""
    path = f"{Places('garmadon').staged}/{kind}/s{piece.partition.number}.{piece.start}.{piece.end}.{new_batch_id()}.pq"
    last = max(each.offset for each in events)
    topic, number = piece.partition.topic, piece.partition.number
    return StagedFile(topic, number, path, len(events), RECORD_BYTES * len(events), {"day": day}, last_offset=last)


def staged_in(table: ExportTable) -> Stage:
    """Stage real Parquet files that hold partition and offset of each event."""

    def stage(kind: str, day: str, events: Sequence[Event], piece: Slice) -> StagedFile:
        told = named_only(kind, day, events, piece)
        rows = pa.table([[piece.partition.number] * len(events), [each.offset for each in events]], schema=ROWS)
        sink = io.BytesIO()
        pq.write_table(rows, sink)
        path = told.path.replace(Places("garmadon").staged, table.places.staged)
        table.storage.put(path, sink.getvalue())
        return StagedFile(
            told.topic,
            told.partition,
            path,
            told.rows,
            len(sink.getvalue()),
            told.partition_values,
            last_offset=told.last_offset,
        )

    return stage


def share_of(kind: str, events: Sequence[Event], piece: Slice, takes: bool, stage: Stage) -> Share:
    """What a task would report of one type: rows by day if it takes part, else only that they were seen."""
    days = Counter(each.day for each in events)
    files = [stage(kind, day, [each for each in events if each.day == day], piece) for day in days] if takes else []
    times = [each.at_ms for each in events if each.at_ms is not None]
    return Share(
        counts=Counts(read=len(events), written=len(events) if takes else 0),
        first=min((each.offset for each in events), default=None),
        size_bytes=RECORD_BYTES * len(events),
        event_ms_max=max(times, default=None),
        days=dict(days) if takes else {},
        files=tuple(files),
    )


@dataclass(frozen=True, slots=True)
class Reader:
    """Makes parts of a made-up log: which events a slice holds, and what became of each type."""

    events: Sequence[Event]
    types: tuple[str, ...]
    partition: Partition = EVENTS
    token: int = 1
    stage: Stage = field(default=named_only)

    def main(
        self,
        start: int,
        end: int,
        lagging: Mapping[str, Cause] | None = None,
        gap: int = 0,
        watermark_ms: int | None = None,
    ) -> RoutedPart:
        """The slice `[start, end)` with every type written but those left."""
        left = lagging or {}
        piece = Slice(self.partition, start, end, start + gap)
        takes = {name: start for name in self.types if name not in left}
        seen = [each for each in self.events if piece.read_from <= each.offset < end]
        shares = {
            name: share_of(name, found, piece, name in takes, self.stage)
            for name in self.types
            if (found := [each for each in seen if each.kind == name])
        }
        strangers = sum(each.kind not in self.types for each in seen)
        if strangers:
            shares[UNROUTED] = Share(Counts(read=strangers, quarantined=strangers))
        return RoutedPart(piece, self.token, shares, takes, left, watermark_ms=watermark_ms)

    def catch_up(
        self, takes: Mapping[str, int], end: int, lost_below: int = 0, watermark_ms: int | None = None
    ) -> RoutedPart:
        """Types that lag, each from its own offset on to `end`; the log has lost what is below `lost_below`."""
        piece_start = min(takes.values())
        piece = Slice(self.partition, piece_start, end, min(end, max(piece_start, lost_below)))
        shares = {}
        for name, start in takes.items():
            found = [each for each in self.events if each.kind == name and max(start, lost_below) <= each.offset < end]
            if found:
                shares[name] = share_of(name, found, piece, True, self.stage)
        return RoutedPart(piece, self.token, shares, takes, main=False, watermark_ms=watermark_ms)


def land(table: ExportTable, *parts: LedgerPart) -> Outcome:
    return table.land(new_batch_id(), parts)


def landed(table: ExportTable, *parts: LedgerPart) -> LedgerState:
    """Land parts that the ledger has to accept; the state with them."""
    outcome = land(table, *parts)
    assert outcome.refused == ()
    return table.state()


def visible(storage: Storage) -> Counter[tuple[str, int, int]]:
    """What a plain reader finds: (type, partition, offset) of every row below the types' folders."""
    found: Counter[tuple[str, int, int]] = Counter()
    for entry in storage.list():
        kind, _, rest = entry.path.partition("/")
        if kind.startswith("_") or not rest.endswith(".parquet"):
            continue
        with storage.open_reader(entry.path) as source:
            rows = pq.ParquetFile(source).read().to_pylist()
        found.update((kind, row["partition"], row["offset"]) for row in rows)
    return found


def expected(events: Iterable[Event], partition: Partition = EVENTS) -> Counter[tuple[str, int, int]]:
    """Every event once, in the folder of its type."""
    return Counter((each.kind, partition.number, each.offset) for each in events)
