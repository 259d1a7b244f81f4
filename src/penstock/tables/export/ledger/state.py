"""What the ledger of an export says: positions per partition and type, and all that the next entry builds on."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec
import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.columns.fitting import conflict, grown
from penstock.flow.write.manifest import StagedFile
from penstock.lake.delta.keys import fingerprint, topic_fingerprint
from penstock.lake.state import Totals
from penstock.logs.log import EpochMark, Partition
from penstock.tables.export.ledger.names import type_and_day

Day = str
"""`YYYY-MM-DD`, in UTC."""
TypeDay = tuple[str, Day]


class Cause(StrEnum):
    """Why a type lags the others."""

    ROTATION = "rotation"
    FAILING = "failing"
    BACKFILL = "backfill"


class Stored(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A value as the ledger keeps it: what is at its default is left out, and what is not known stops the reader."""


class Lane(Stored, frozen=True):
    """A type that lags in a partition: everything of it below `position` is written.

    A type without a lane is where the partition is: that is how an idle type counts as up to date.
    """

    position: int
    cause: Cause
    counted_from: int
    """Records of the type from this offset on are in `deferred`; those below belong to a backfill."""
    deferred: int = 0
    size_bytes: int = 0
    since: float = 0.0
    """When the first of them was left."""
    watermark_ms: int | None = None
    """The event time that the type is complete up to."""
    routing: str = ""
    """Of a backfill: the routing of the process that added the type."""
    gap: int = 0
    """Offsets since `counted_from` that the log had lost: some of `deferred` may never be found."""


class RoutedFrom(Stored, frozen=True):
    """From which offset on the records of a partition were counted under a routing."""

    offset: int
    routing: str


class Listing(Stored, frozen=True):
    """Quarantine files that an entry listed; `number` is the entry's (RULES Q1)."""

    number: int
    files: tuple[StagedFile, ...]


class Reread(Stored, frozen=True):
    """Offsets `[start, end)` that the log gives to a type that began at the beginning, also if it has read them by now.

    What is in quarantine of the type there may be among its rows: no replay touches it.
    """

    start: int
    end: int


class RoutedPartition(Stored, frozen=True):
    """What the ledger holds of one partition. `position` is where every type is that has no lane."""

    position: int | None = None
    origin: int | None = None
    token: int = 0
    totals: Totals = Totals()
    lanes: Mapping[str, Lane] = msgspec.field(default_factory=dict)
    watermark_ms: int | None = None
    listing: Listing | None = None
    routings: tuple[RoutedFrom, ...] = ()
    """Ascending, as far back as a lane may still need them; a rebuilt partition has none below its position."""
    rereads: Mapping[str, Reread] = msgspec.field(default_factory=dict)
    mark: EpochMark | None = None
    """The last record that was read whose leader epoch is known (RULES P3)."""

    @property
    def quarantine_mark(self) -> int | None:
        return self.listing.number if self.listing else None

    def watermark_of(self, name: str) -> int | None:
        lane = self.lanes.get(name)
        return self.watermark_ms if lane is None else lane.watermark_ms


class Rename(Stored, frozen=True):
    """A staged file and the name that readers will see it under."""

    source: str
    target: str
    type: str
    topic_id: str = ""
    partition: int = 0
    start: int = 0
    """Of the slice that it belongs to."""
    waits: bool = False
    """Whether it may only be done once all removes are (RULES L7)."""
    rows: int = 0
    size_bytes: int = 0
    run: int = 0
    """Of a replay: its number. The file belongs to no slice, so it holds no position back."""
    stats: str = ""
    """What the type's own Delta table keeps of the file, where it takes it under the name that it was staged with."""

    @property
    def path_in_table(self) -> str:
        """The target as the table of its type sees it."""
        return self.target.removeprefix(f"{self.type}/")

    @property
    def day(self) -> Day:
        """By the folder; empty for a target that is in none."""
        place = type_and_day(self.target)
        return "" if place is None else place[1]


class Unfinished(Stored, frozen=True):
    """The file operations that an entry ordered: removes come before renames (RULES L7)."""

    renames: tuple[Rename, ...] = ()
    removes: tuple[str, ...] = ()
    marks: tuple[TypeDay, ...] = ()
    """Days of types whose markers the entry changes: taken away before all other operations, put back after them."""


class TypeState(Stored, frozen=True):
    """One type of the table: its fixed columns and what was written of it."""

    schema: str = ""
    """An Arrow schema, serialised and in base64; empty while it is not inferred yet."""
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    outcomes: str = ""
    """The last writes to the final place, the newest last: `1` done, `0` failed."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The fold of the ledger up to entry `number`."""

    number: int = 0
    partitions: Mapping[Partition, RoutedPartition] = field(default_factory=dict)
    fingerprints: Mapping[str, int | None] = field(default_factory=dict)
    types: Mapping[str, TypeState] = field(default_factory=dict)
    unfinished: Unfinished = field(default_factory=Unfinished)
    """Of the last entry: nobody adds an entry before these operations are done or carried over (RULES L1)."""
    pending: tuple[Rename, ...] = ()
    """Renames that failed and were carried over (RULES L4)."""
    reopened: Mapping[TypeDay, int] = field(default_factory=dict)
    """Days that got late rows after they were complete, with the watermark of that moment."""
    open_days: frozenset[TypeDay] = frozenset()
    """Days that have rows and are not complete."""
    first_batch: str = ""
    """The batch id of the first entry: it tells this ledger from another one of the same job and root."""
    routings: Mapping[str, str] = field(default_factory=dict)
    """The routings that processes of the job had, by id, as `Routing.text`."""
    retired: int = 0
    """No entry takes an output of a compaction any more that had to be named by this number."""
    replay_run: int = 0
    """The number of the last replay run; 0 before the first."""
    replay_entry: int = 0
    """The entry that holds it, with the offsets that may still have to be taken out of quarantine (RULES Q2)."""

    @property
    def version(self) -> int:
        return self.number

    def of(self, partition: Partition) -> RoutedPartition:
        return self.partitions.get(partition, RoutedPartition())

    @property
    def tokens(self) -> dict[Partition, int]:
        return {partition: state.token for partition, state in self.partitions.items()}

    def current(self) -> Iterator[tuple[Partition, RoutedPartition]]:
        """The partitions of the topics' present lives."""
        for partition, here in self.partitions.items():
            if self.fingerprints.get(partition.topic) == topic_fingerprint(partition.topic_id):
                yield partition, here

    def position_of(self, partition: Partition, name: str | None = None) -> int | None:
        """The offset up to which everything of a type, or of all types, is where readers see it (RULES L5)."""
        here = self.of(partition)
        if here.position is None:
            return None
        lanes = [lane.position for each, lane in here.lanes.items() if name in (None, each)]
        waiting = [each.start for each in self.pending if name in (None, each.type) and _of(each, partition)]
        return min([here.position, *lanes, *waiting])

    @property
    def life(self) -> int | None:
        """What another ledger of the same job and root does not have; None: there is no entry yet."""
        return fingerprint(self.first_batch) if self.first_batch else None

    def global_position(self, partition: Partition) -> int | None:
        """The offset below which nothing has to be read again."""
        return self.position_of(partition)

    def lives(self) -> dict[str, list[str]]:
        """The ids that each topic has had, in the order in which the ledger met them."""
        found: dict[str, dict[str, None]] = {}
        for each in self.partitions:
            found.setdefault(each.topic, {})[each.topic_id] = None
        return {topic: list(ids) for topic, ids in found.items()}

    def life_of(self, partition: Partition) -> int:
        """Which life of its topic a partition belongs to, from 1 on."""
        return self.lives()[partition.topic].index(partition.topic_id) + 1

    def schema_of(self, name: str) -> pa.Schema | None:
        """The fixed columns of a type as the decoder gives them; None while they are not inferred."""
        known = self.types.get(name)
        if known is None or not known.schema:
            return None
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(known.schema)))

    def pending_types(self) -> frozenset[str]:
        return frozenset(each.type for each in self.pending)


def _of(rename: Rename, partition: Partition) -> bool:
    return not rename.run and (rename.topic_id, rename.partition) == (partition.topic_id, partition.number)


def schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def extended(known: pa.Schema, wanted: pa.Schema, name: str) -> pa.Schema:
    """The known columns and fields and those that are new; a column never changes its type nor its spelling."""
    found = conflict(known, wanted)
    if found is not None:
        raise UserError(
            f"type {name}: the column {found.path} is {found.one} in the table and {found.other} in the job",
            hint="files that are written keep their types: give the field another name",
        )
    return grown(known, wanted)
