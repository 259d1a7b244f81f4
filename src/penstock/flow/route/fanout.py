"""What one Spark task of an export does: every record to its type and day, in one pass over its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.decode.misfit import quoted
from penstock.flow.decode.outcome import TOMBSTONE
from penstock.flow.route.fanout_flow import FanoutFlow
from penstock.flow.route.field import FieldRouter
from penstock.flow.route.filing import Filer, merged
from penstock.flow.route.routes import UNKNOWN, PlainRouter, Routed, Router, RouteSource, Rows
from penstock.flow.route.type_reader import TypeReader, looked_at
from penstock.flow.rows import BadRows, Decoded, DecodedRows, groups, in_parts, take
from penstock.flow.stage import Batches, Stage, log_parts, run_task, without_poison
from penstock.flow.write.manifest import Counts, PartitionKey
from penstock.flow.write.report import UNROUTED, Share, TaskReport
from penstock.flow.write.tally import TypeKey
from penstock.job.spec import RouteSpec
from penstock.logs.batches import as_one
from penstock.logs.log import EpochMark

ROWS_PER_TYPE = 4_096
"""Measured: calls of a decoder with 900 records cost 1.6 times as much as those with 3,000."""
NO_TYPE = f"{TOMBSTONE}, so its type is not known"

DecodedByType = dict[str, list[DecodedRows]]
"""The decoded rows of one batch by type."""


def fanout_stage(flow: FanoutFlow) -> Stage:
    """Route, decode, file by day and write in one pass over Arrow batches."""

    def run(batches: Iterable[pa.RecordBatch]) -> Batches:
        fanout = Fanout(flow)
        parts = log_parts(batches, fanout.note_mark, ROWS_PER_TYPE * len(flow.types))
        return run_task(fanout, parts, flow.failpoint)

    return run


class Fanout:
    """Routes the records of each batch to their types."""

    def __init__(self, flow: FanoutFlow) -> None:
        self._flow = flow
        values = {name: kind.values for name, kind in flow.types.items()}
        router = FieldRouter if flow.route.by == "field" else PlainRouter
        self._router: Router = router(flow.route, values, flow.decode.payload)
        self._readers: dict[RouteSource, TypeReader] = {}
        self._filer = Filer(flow)
        self._files = self._filer.files
        self._tallies = self._filer.tallies

    def take(self, key: PartitionKey, part: pa.RecordBatch) -> None:
        """Take records of one partition in offset order."""
        part, poisoned = without_poison(part, self._flow.poison.get(key, {}))
        self._set_aside(key, poisoned)
        for routed in in_parts(self._router.route, self._without_tombstones(key, part)):
            self._take_routed(key, routed)

    def _take_routed(self, key: PartitionKey, routed: Routed) -> None:
        self._refuse(key, routed.bad)
        gathered: DecodedByType = {}
        if not routed.sure:
            routed = self._router.route_rest(self._proved(key, routed, gathered))
            self._refuse(key, routed.bad)
        for code, rows in groups(routed.codes):
            self._sort(key, code, routed, rows, gathered)
        self._file(key, gathered)

    def _file(self, key: PartitionKey, gathered: DecodedByType) -> None:
        for name, parts in gathered.items():
            self._filer.file(TypeKey(key, name), merged(parts))
        gathered.clear()

    def note_mark(self, key: PartitionKey, mark: EpochMark) -> None:
        self._tallies.note_mark(key, mark)

    def finish(self) -> TaskReport:
        return self._filer.finish()

    def abandon(self) -> None:
        self._files.abandon()

    def _set_aside(self, key: PartitionKey, poisoned: BadRows) -> None:
        """Quarantine records that break the job, each for its type; one that is behind leaves them to its catch-up."""
        for row, error in enumerate(poisoned.errors):
            record = poisoned.kafka.slice(row, 1)
            bad = BadRows(record, pa.array([error.as_py()], pa.string()))
            name = self._type_of(record)
            if name is None:
                self._refuse(key, bad)
            elif len(self._taken(TypeKey(key, name), record, np.arange(1))):
                self._filer.quarantine(TypeKey(key, name), bad)

    def _type_of(self, record: pa.RecordBatch) -> str | None:
        """The type of one record; None if it belongs to none, or if that is not known."""
        try:
            routed = self._router.route_rest(self._router.route(record).batch)
        except Exception:  # noqa: BLE001, that it breaks something is why the record is set aside
            return None
        if not len(routed.codes) or int(routed.codes[0]) == UNKNOWN:
            return None
        return self._router.ways[int(routed.codes[0])].type

    def _without_tombstones(self, key: PartitionKey, part: pa.RecordBatch) -> pa.RecordBatch:
        """The records that can have a type; tombstones follow their policy."""
        values = part.column("value")
        policy = self._flow.on.tombstone
        by_metadata = self._flow.route.by in ("key", "header")
        if not values.null_count or (policy == "row" and by_metadata):
            return part
        dead = part.filter(values.is_null())
        if policy == "filter":
            self._drop(key, dead)
        else:
            reason = NO_TYPE if policy == "row" else TOMBSTONE
            self._refuse(key, BadRows(dead, pa.repeat(reason, dead.num_rows)))
        return part.filter(values.is_valid())

    def _proved(self, key: PartitionKey, guess: Routed, gathered: DecodedByType) -> pa.RecordBatch:
        """Decode records that are guessed to be of a type that is written; returns those whose type is not proved."""
        doubtful: list[pa.RecordBatch] = []
        for code, rows in groups(guess.codes):
            batch = take(guess.batch, rows)
            reader = None if code == UNKNOWN else self._prover(key, self._router.ways[code], batch)
            if reader is None:
                doubtful.append(batch)
                continue
            proved = reader.prove(batch)
            if proved.doubtful.num_rows:
                doubtful.append(proved.doubtful)
            if proved.rows.kafka.num_rows:
                type_key = TypeKey(key, self._router.ways[code].type)
                self._count(type_key, proved.rows.kafka)
                self._tallies.add_fields(type_key, proved.new_fields)
                gathered.setdefault(type_key.type, []).append(proved.rows)
        return as_one(doubtful) if doubtful else guess.batch.slice(0, 0)

    def _prover(self, key: PartitionKey, way: RouteSource, batch: pa.RecordBatch) -> TypeReader | None:
        """The reader that decodes and proves at once, if all these records would be written unchanged."""
        start = self._flow.slices[key].takes.get(way.type)
        if start is None or batch.column("offset")[0].as_py() < start or self._flow.types[way.type].decoded is None:
            return None
        if way.type in self._flow.slices[key].left:
            return None
        reader = self._reader(TypeKey(key, way.type), way)
        return reader if reader is not None and reader.proves else None

    def _sort(self, key: PartitionKey, code: int, routed: Routed, rows: Rows, gathered: DecodedByType) -> None:
        """Write, count or skip the rows of one way, as the slice states for its type."""
        if code == UNKNOWN:
            self._turn_away(key, take(routed.batch, rows), routed.values.take(pa.array(rows)))
            return
        way = self._router.ways[code]
        type_key = TypeKey(key, way.type)
        rows = self._taken(type_key, routed.batch, rows)
        if not len(rows) or type_key in self._files.failed:
            return
        batch = take(routed.batch, rows)
        if self._flow.types[way.type].decoded is None:
            self._keep_all(type_key, partial(looked_at, self._flow), batch, gathered)
        elif (reader := self._reader(type_key, way)) is not None:
            self._keep_all(type_key, reader.read, batch, gathered)

    def _taken(self, type_key: TypeKey, batch: pa.RecordBatch, rows: Rows) -> Rows:
        """Count the rows that belong to the slice, and return those of them that the type does not have yet."""
        piece = self._flow.slices[type_key.partition]
        start = piece.takes.get(type_key.type)
        if start is None:
            if piece.main:
                self._count(type_key, batch, rows)
            else:
                self._pass_over(type_key.partition, len(rows))
            return rows[:0]
        offsets = batch.column("offset").to_numpy()[rows]
        belongs = offsets >= piece.counts.get(type_key.type, piece.start if piece.main else start)
        chosen: Rows = rows[belongs]
        self._pass_over(type_key.partition, len(rows) - len(chosen))
        if len(chosen):
            self._count(type_key, batch, chosen)
        missing = offsets[belongs] >= start
        if not missing.all():
            # A process that died left the type ahead: it has these records, wherever they belong.
            present = len(chosen) - int(missing.sum())
            self._tallies.add(type_key, Share(Counts(skipped=present)))
            lacking: Rows = chosen[missing]
            return lacking
        if type_key.type not in piece.left:
            return chosen
        # In a replay: the type reads these records from the log.
        in_log = offsets[belongs] >= piece.left[type_key.type]
        self._tallies.add(type_key, Share(Counts(skipped=int(in_log.sum()))))
        kept: Rows = chosen[~in_log]
        return kept

    def _keep_all(
        self,
        type_key: TypeKey,
        decode: Callable[[pa.RecordBatch], Decoded],
        batch: pa.RecordBatch,
        gathered: DecodedByType,
    ) -> None:
        """Decode a batch of one type and keep what becomes of it, unless the type fails on the way."""
        parts = in_parts(decode, batch)
        while True:
            decoded = None
            with self._files.isolated(type_key):
                decoded = next(parts, None)
            if decoded is None or type_key in self._files.failed:
                return
            self._keep(type_key, decoded, gathered)
            if decoded.rest is not None:
                # What is large unpacked is not held until the whole batch is decoded.
                self._file(type_key.partition, gathered)

    def _keep(self, type_key: TypeKey, decoded: Decoded, gathered: DecodedByType) -> None:
        self._tallies.add(type_key, Share(Counts(filtered=decoded.filtered)))
        self._tallies.add_fields(type_key, decoded.new_fields)
        self._filer.quarantine(type_key, decoded.bad)
        if decoded.rows.kafka.num_rows:
            gathered.setdefault(type_key.type, []).append(decoded.rows)

    def _reader(self, type_key: TypeKey, way: RouteSource) -> TypeReader | None:
        """None for a type that has failed, also if it failed here because it cannot be decoded."""
        if way not in self._readers and type_key not in self._files.failed:
            with self._files.isolated(type_key):
                self._readers[way] = TypeReader(self._flow, self._flow.types[way.type], numeric=way.numeric)
        return self._readers.get(way) if type_key not in self._files.failed else None

    def _turn_away(self, key: PartitionKey, batch: pa.RecordBatch, values: pa.Array) -> None:
        if self._flow.route.unknown == "drop":
            self._drop(key, batch)
            return
        reasons = [_unknown(value, self._flow.route) for value in values.to_pylist()]
        self._refuse(key, BadRows(batch, pa.array(reasons, pa.string())))

    def _refuse(self, key: PartitionKey, bad: BadRows) -> None:
        """Quarantine records that belong to no type."""
        if not self._flow.slices[key].main:
            self._pass_over(key, len(bad.errors))
        elif len(bad.errors):
            type_key = TypeKey(key, UNROUTED)
            self._count(type_key, bad.kafka)
            self._filer.quarantine(type_key, bad)

    def _drop(self, key: PartitionKey, batch: pa.RecordBatch) -> None:
        if not self._flow.slices[key].main:
            self._pass_over(key, batch.num_rows)
        elif batch.num_rows:
            type_key = TypeKey(key, UNROUTED)
            self._count(type_key, batch)
            self._tallies.add(type_key, Share(Counts(filtered=batch.num_rows)))

    def _pass_over(self, key: PartitionKey, count: int) -> None:
        """Records that a catch-up reads and no type of it takes: counted, so that a missing offset is noticed."""
        if count:
            self._tallies.add(TypeKey(key, UNROUTED), Share(Counts(read=count, filtered=count)))

    def _count(self, type_key: TypeKey, batch: pa.RecordBatch, rows: Rows | None = None) -> None:
        offsets = batch.column("offset")
        if rows is not None and len(rows) < batch.num_rows:
            offsets = offsets.take(pa.array(rows))
        if len(offsets):
            self._tallies.add(type_key, Share(Counts(read=len(offsets)), pc.min(offsets).as_py()))


def _unknown(value: str | None, route: RouteSpec) -> str:
    if value is not None:
        return f"its type {quoted(value)} is not known"
    match route.by:
        case "field":
            return f"has no type: no text or whole number at {'.'.join(route.path)}"
        case "header":
            return f"has no type: no text in a header {route.path[0]}"
        case _:
            return f"has no type: no text in its {route.by}"
