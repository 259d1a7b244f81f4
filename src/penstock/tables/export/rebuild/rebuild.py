"""A lost ledger made again from the names and footers of the data files (RULES L6).

What files cannot tell is settled so that nothing is lost and no row doubled (docs/protocol.md, "A lost ledger"). Beyond
that: a type that began `now` and left no file in a partition counts as up to date there, with a warning; a partition
without files is an ambiguity unless the job begins at the beginning. Entry numbers go on above those that compacted
files and the quarantine name: both would take a number that comes twice for done.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.environment import new_batch_id
from penstock.errors import UserError
from penstock.flow.columns.fitting import folded, grown
from penstock.flow.route.type_files import REPLAYED
from penstock.job.spec import StartAt
from penstock.lake.delta.keys import is_position_of
from penstock.lake.state import Totals
from penstock.logs.log import Bounds, Partition
from penstock.tables.export.files.data_files import COMPACTED, DataFile, Footer, plain, read_footers, unclaimed_files
from penstock.tables.export.ledger.codec import encode_entry
from penstock.tables.export.ledger.entry import Entry, EntryKind, SliceRecord, StartRecord, TakenRecord, TypeRecord
from penstock.tables.export.ledger.fold import apply
from penstock.tables.export.ledger.names import output_entry
from penstock.tables.export.ledger.state import LedgerState, schema_text
from penstock.tables.export.rebuild.inputs import (
    Ambiguity,
    FileRecord,
    PartitionProof,
    ReplayedFile,
    TypeProof,
    bad_counts,
    file_record,
    prove,
    replay_record,
    written_of,
)
from penstock.tables.export.spec import TypeStart, quarantine_url
from penstock.tables.export.table import ExportTable
from penstock.tables.quarantine.table import open_quarantine


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that was read from the data files."""

    records: tuple[FileRecord, ...]
    replayed: tuple[ReplayedFile, ...]
    ambiguities: tuple[Ambiguity, ...]
    schemas: Mapping[str, pa.Schema]
    """By type, of the file with the most columns: columns are only ever added."""
    entry_max: int
    """The greatest number of an entry that a file name tells."""


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild found. `state` is that of the new ledger; None if an ambiguity prevented it."""

    files: int
    rows: int
    ambiguities: tuple[Ambiguity, ...] = ()
    state: LedgerState | None = None
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.ambiguities

    def as_json(self) -> dict[str, Any]:
        state = self.state or LedgerState()
        return {
            "ok": self.ok,
            "entry": state.number or None,
            "files": self.files,
            "rows": self.rows,
            "partitions": [
                {
                    "topic": each.topic,
                    "topic_id": each.topic_id,
                    "partition": each.number,
                    "origin": here.origin,
                    "position": here.position,
                    "read_again": {name: lane.position for name, lane in sorted(here.lanes.items())},
                }
                for each, here in state.partitions.items()
            ],
            "ambiguities": [
                {**asdict(each), "partition": each.partition or None, "files": list(each.files)}
                for each in self.ambiguities
            ],
            "warnings": list(self.warnings),
        }

    def lines(self) -> Iterator[str]:
        if self.state is not None:
            for each, here in self.state.partitions.items():
                yield f"{each}: from {here.origin} to {here.position}"
                for name, lane in sorted(here.lanes.items()):
                    yield f"  {name} is read again from {lane.position}"
            yield f"rebuilt as entry {self.state.number} from {self.files} files with {self.rows} rows"
        for warning in self.warnings:
            yield f"warning: {warning}"
        for ambiguity in self.ambiguities:
            yield _sentence(ambiguity)
        if self.ambiguities:
            yield "nothing was written"


def _sentence(ambiguity: Ambiguity) -> str:
    place = ambiguity.partition
    if ambiguity.offsets is not None:
        place += f" offsets {ambiguity.offsets[0]} to {ambiguity.offsets[1] - 1}"
    words = [part for part in (place, ", ".join(ambiguity.files), ambiguity.reason) if part]
    return f"ambiguity: {': '.join(words)}"


def rebuild(table: ExportTable, bounds: Mapping[Partition, Bounds]) -> RebuildReport:
    """Make the ledger again, or say what keeps it from being made; `bounds` are of the topics' present partitions."""
    _refuse_remains(table)
    found = _look(table)
    proofs, open_questions = prove(found.records, found.replayed, table.export.all_types)
    ambiguities = [*found.ambiguities, *open_questions]
    if table.job.log.start is not StartAt.EARLIEST:
        reason = "it left no file, and the job does not begin at the beginning (start: earliest)"
        unproved = sorted(bounds.keys() - {each.partition for each in proofs})
        ambiguities += [Ambiguity(reason, str(each)) for each in unproved]
    if not proofs and not ambiguities:
        ambiguities = [Ambiguity("there are no data files of this job")]
    files = (*found.records, *found.replayed)
    report = RebuildReport(len(files), sum(each.rows for each in files), tuple(ambiguities))
    if not report.ok:
        return report
    table.claims.claim_names({each.partition.topic for each in proofs})
    table.claims.claim_topics({each.partition.topic_id for each in proofs})
    # Watermarks are unknown from now on: no day counts as complete, and no marker of the lost ledger may say so.
    for marker in list(table.storage.list(table.places.markers)):
        table.storage.delete(marker.path)
    entries, state = _entries(table, found, proofs, bounds)
    # The one act that counts: without it nobody finds the entries, with it nobody needs them.
    table.ledger.keep_snapshot(state)
    for entry in entries:
        table.storage.put_if_absent(table.places.entry(entry.number), encode_entry(entry))
    return replace(report, state=state, warnings=tuple(_warnings(table, proofs, state, bounds)))


def _refuse_remains(table: ExportTable) -> None:
    places = table.places
    for folder in (places.entries, places.snapshots):
        if next(iter(table.storage.list(folder)), None) is not None:
            raise UserError(
                f"the job {table.job.name} has a ledger",
                detail=f"there are objects below {folder}",
                hint="a ledger is rebuilt only where none is; move remains of a damaged one away first",
            )
    if table.storage.exists(places.last_snapshot):
        raise UserError(f"{places.last_snapshot} is what is left of a ledger", hint="move it away first")


# what is there


def _look(table: ExportTable) -> Found:
    """Read the footers of all data files of this job."""
    # Also those of topics and types that the job file no longer names.
    files = sorted(unclaimed_files(table.storage, table.job.name), key=lambda each: each.path)
    spaces = {table.space.of(each) for each in table.job.log.topics}
    told: list[FileRecord | ReplayedFile | Ambiguity] = []
    schemas: dict[str, pa.Schema] = {}
    for file, footer in zip(files, read_footers(table.storage, [each.path for each in files]), strict=True):
        if not isinstance(footer, Footer):
            reason = "it is gone again" if footer is None else footer.detail
            told.append(Ambiguity(f"its footer cannot be read: {reason}", files=(file.path,)))
            continue
        # That of a topic that the job no longer reads tells its job in its footer.
        if file.name is not None and file.name.space not in spaces and footer.facts.get("job") != table.job.name:
            continue
        told += _records_of(table, file, footer)
        known = schemas.get(file.type, footer.schema)
        # The file with the most columns is the youngest by all signs; structs in others may still have more fields.
        youngest = max(known, footer.schema, key=len)
        schemas[file.type] = grown(youngest, footer.schema if youngest is known else known)
    numbers = (output_entry(each.path, table.job.name) or 0 for each in files)
    return Found(
        tuple(each for each in told if isinstance(each, FileRecord)),
        tuple(each for each in told if isinstance(each, ReplayedFile)),
        tuple(each for each in told if isinstance(each, Ambiguity)),
        schemas,
        max(numbers, default=0),
    )


def _records_of(table: ExportTable, file: DataFile, footer: Footer) -> Iterator[FileRecord | ReplayedFile | Ambiguity]:
    expected = table.space.of(str(footer.facts.get("topic", "")))
    if file.name is not None and footer.facts and file.name.space != expected:
        reason = f"its name does not begin with {expected}: was table.export.cluster changed?"
        yield Ambiguity(reason, files=(file.path,))
    elif file.name is not None or footer.facts.get("kind") == REPLAYED:
        yield file_record(footer.facts, file.path, footer.rows, file.size_bytes)
    elif footer.facts.get("kind") != COMPACTED:
        yield Ambiguity("its footer does not tell what it replaces", files=(file.path,))
    else:
        replaced = footer.facts["replaces"]
        if sum(each["rows"] for each in replaced) != footer.rows:
            yield Ambiguity("it has not as many rows as the files that it replaces", files=(file.path,))
        for each in replaced:
            yield file_record(each, each["path"], each["rows"], each["size_bytes"])


# what is written


def _entries(
    table: ExportTable, found: Found, proofs: Sequence[PartitionProof], bounds: Mapping[Partition, Bounds]
) -> tuple[tuple[Entry, Entry], LedgerState]:
    """The starts and slices of all partitions, then each type back to where it is proved to be."""
    quarantine = open_quarantine(table.job, quarantine_url(table.job), table.environment)
    numbers = {} if quarantine is None else quarantine.transactions()
    appended = [number for key, number in numbers.items() if is_position_of(table.job.name, key)]
    number = max([found.entry_max, *appended])
    schemas = _type_schemas(table, found)
    at = table.environment.now()
    present = {each.topic_id for each in bounds}
    bad = bad_counts(quarantine, proofs, found.replayed)
    begun = Entry(
        number + 1,
        EntryKind.REBUILD,
        table.job.name,
        new_batch_id(),
        at,
        starts=tuple(StartRecord(each.partition, each.origin, 0) for each in proofs),
        slices=tuple(_whole_slice(each, bad[each.partition]) for each in proofs),
        types={name: TypeRecord(schema, TypeStart.NOW) for name, schema in schemas.items()},
        routings={table.routing.id: table.routing.text},
    )
    caught_up = Entry(
        number + 2,
        EntryKind.REBUILD,
        table.job.name,
        begun.batch_id,
        at,
        slices=tuple(
            piece for each in proofs for piece in _type_slices(table, each, schemas, each.partition.topic_id in present)
        ),
        types={
            # What is read again is routed as the present job file says, whatever a later one does with the type.
            name: TypeRecord(schema, TypeStart.BEGINNING, table.routing.id if name in table.export.all_types else "")
            for name, schema in schemas.items()
        },
        replay=replay_record(quarantine, found.replayed),
    )
    return (begun, caught_up), apply(apply(LedgerState(number=number), begun), caught_up)


def _whole_slice(proof: PartitionProof, bad: int) -> SliceRecord:
    """Everything that slices of the partition itself wrote, as one."""
    written = {name: written_of(each.main) for name, each in proof.types.items() if each.main}
    rows = sum(each.rows for each in written.values())
    free = proof.position - proof.origin - rows
    bad = min(bad, free)
    totals = Totals(read=rows + bad, written=rows, quarantined=bad, holes=free - bad)
    return SliceRecord(proof.partition, proof.origin, proof.position, 0, totals, written=written)


def _type_slices(
    table: ExportTable, proof: PartitionProof, types: Iterable[str], readable: bool
) -> Iterator[SliceRecord]:
    """Each type from the beginning to where it is proved to be; the rest stays before it as a lane.

    A topic's earlier life cannot be read again: there every type counts as complete.
    """
    for name in types:
        proved = proof.types.get(name, TypeProof(proof.origin))
        rows = sum(each.rows for each in proved.caught_up)
        position = proved.position if readable and not _began_unseen(table, proof, name) else proof.position
        if position == proof.origin:
            continue
        yield SliceRecord(
            proof.partition,
            proof.origin,
            position,
            0,
            Totals(written=rows, backfilled=rows),
            written={name: written_of(proved.caught_up)} if proved.caught_up else {},
            taken={name: TakenRecord(proof.origin, rows)},
        )


def _began_unseen(table: ExportTable, proof: PartitionProof, name: str) -> bool:
    """Whether a type began at some offset of the partition, and left no file that would tell which."""
    spec = table.export.all_types.get(name)
    proved = proof.types.get(name)
    seen = proved is not None and bool(proved.main or proved.caught_up)
    return spec is not None and spec.start is TypeStart.NOW and not seen


def _type_schemas(table: ExportTable, found: Found) -> dict[str, str]:
    """The decoded columns of every type: as the files have them without those that the job computes.

    A type of the job file without a file is entered too; unless it is to begin at the beginning, which it then will.
    """
    schemas = {}
    computed = {folded(name) for name in table.job.columns}
    for name, spec in table.export.all_types.items():
        if name not in found.schemas and spec.start is not TypeStart.BEGINNING:
            schemas[name] = "" if spec.schema is None else schema_text(spec.schema)
    for name, schema in found.schemas.items():
        spec_schema = table.export.all_types[name].schema if name in table.export.all_types else None
        decoded = pa.schema([each for each in schema if folded(each.name) not in computed])
        schemas[name] = schema_text(_as_decoded(decoded, spec_schema))
    return schemas


def _as_decoded(filed: pa.Schema, stated: pa.Schema | None) -> pa.Schema:
    """The columns of a file with the types of the job file where these are written so: Parquet keeps fewer types."""
    if stated is None:
        return filed
    sink = io.BytesIO()
    pq.write_table(stated.empty_table(), sink, store_schema=False, version="2.6", coerce_timestamps="us")
    as_filed = plain(pq.read_schema(sink))
    same = {each.name for each in as_filed if each.name in filed.names and filed.field(each.name).type == each.type}
    return pa.schema([stated.field(each.name) if each.name in same else each for each in filed])


def _warnings(
    table: ExportTable, proofs: Iterable[PartitionProof], state: LedgerState, bounds: Mapping[Partition, Bounds]
) -> Iterator[str]:
    for proof in proofs:
        held = bounds.get(proof.partition)
        if held is None:
            continue
        for name, lane in sorted(state.of(proof.partition).lanes.items()):
            if lane.position < held.first:
                yield (
                    f"{proof.partition}: the log no longer has offsets {lane.position} to {held.first - 1}; "
                    f"if type {name} lagged there, its records are lost"
                )
        for name in sorted(state.types):
            if _began_unseen(table, proof, name):
                yield f"{proof.partition}: type {name} began `now` and left no file: it counts as up to date"
