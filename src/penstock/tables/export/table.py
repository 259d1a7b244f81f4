"""The table of an export: its ledger, the files that the ledger orders about, and the commit (RULES L1 to L5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec import structs

from penstock.environment import Environment, new_batch_id
from penstock.errors import PenstockError, TransientError, UserError
from penstock.flow.columns.computed import output_type
from penstock.flow.columns.fitting import grown, respelled
from penstock.flow.write.manifest import StagedFile
from penstock.job.expressions import fields
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import position_key
from penstock.lake.delta.table import Table
from penstock.lake.proposal import Checked, FencePart, Outcome, StartPart
from penstock.lake.staged import check_staged
from penstock.lake.storage import Storage, open_storage
from penstock.logs.log import Partition
from penstock.tables.export.files.data_files import refuse_files_without_ledger, refuse_older_ledger
from penstock.tables.export.files.finishing import Finishing, PlainFiles
from penstock.tables.export.ledger.chain import SNAPSHOT_EVERY, Ledger
from penstock.tables.export.ledger.claimed import RootClaims
from penstock.tables.export.ledger.days import MILLIS_PER_SECOND, closable, reopened_by
from penstock.tables.export.ledger.entry import Entry, EntryKind, FenceRecord, ReplayRecord, StartRecord, TypeRecord
from penstock.tables.export.ledger.fold import apply
from penstock.tables.export.ledger.names import NameSpace, Places, day_folder, final_name, output_name
from penstock.tables.export.ledger.proposal import (
    LedgerPart,
    RoutedPart,
    check,
    kind_of,
    refuse_strangers,
    slice_record,
    without_lanes,
)
from penstock.tables.export.ledger.routing import Routing
from penstock.tables.export.ledger.state import LedgerState, Rename, extended, schema_text
from penstock.tables.export.spec import ExportSpec, TypeSpec, TypeStart, quarantine_url
from penstock.tables.quarantine.table import Listings

COMMIT_ATTEMPTS_MAX = 50
PROBE = "_probe."
"""How the names of probes begin."""
_BACKOFF_SECONDS_MAX = 1.0


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry in the making: `decide` gives one for the newest state, or None if there is nothing to do."""

    kind: EntryKind
    batch_id: str = field(default_factory=new_batch_id)
    renames: tuple[Rename, ...] = ()
    removes: tuple[str, ...] = ()
    types: Mapping[str, TypeRecord] = field(default_factory=dict)
    idle: Mapping[Partition, int] = field(default_factory=dict)
    parts: tuple[LedgerPart, ...] = ()
    routings: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[Rename, ...] = ()
    retired: int = 0
    replay: ReplayRecord | None = None


class ExportTable:
    """All types of one export under one root. Every change is the next entry of its ledger."""

    def __init__(self, job: JobSpec[ExportSpec], environment: Environment, storage: Storage | None = None) -> None:
        self.job = job
        self.export = job.table
        self.environment = environment
        self.storage = storage or open_storage(job.table.path, job.table.storage_options)
        self.places = Places(job.name)
        self.space = NameSpace(job.table.cluster)
        self.claims = RootClaims(self.storage, job, self.space)
        self.routing = Routing.of(job)
        self.ledger = Ledger(self.storage, self.places, environment)
        self.finishing = Finishing(self.storage, self.places, self.ledger, environment, PlainFiles(self.storage))
        self.failures = self.finishing.failures
        self.refusals: dict[str, str] = {}
        """Types whose own table did not take a commit, with the reason."""
        self._probed: set[str] = set()

    def state(self) -> LedgerState:
        """The ledger's word as of its newest entry."""
        return self.ledger.refresh()

    def listings(self, state: LedgerState) -> Listings:
        """What entries list for the quarantine."""
        listed = {each: here.listing.number for each, here in state.partitions.items() if here.listing is not None}
        marks = {position_key(self.job.name, each): number for each, number in listed.items()}
        return Listings(quarantine_url(self.job), marks, state.replay_run)

    # commit

    def land(self, batch_id: str, parts: tuple[LedgerPart, ...]) -> Outcome:
        """Make the parts true in one entry, as far as the ledger accepts them; each partition for itself (RULES C4)."""
        checked: Checked[LedgerPart] = Checked((), ())

        def decide(state: LedgerState) -> Draft | None:
            nonlocal checked
            refuse_strangers(parts, state)
            checked = check([without_lanes(part, state) for part in parts], state)
            if not checked.accepted:
                return None
            self.environment.reach("checked")
            routed = [part for part in checked.accepted if isinstance(part, RoutedPart)]
            renames = tuple(rename for part in routed for rename in self.renames_of(part, state))
            # Without renames the tables of the types have looked at the files, and committed them.
            check_staged(self.storage, [file for part in routed for file in part.files] if renames else ())
            quarantined = [file for part in routed for file in part.quarantine_files]
            if quarantined:
                check_staged(open_storage(quarantine_url(self.job), self.job.table.storage_options), quarantined)
            return Draft(kind_of(checked.accepted), batch_id, renames=renames, parts=checked.accepted)

        number = self.append(decide)
        self.carry_leftover()
        return Outcome(number, checked.accepted if number is not None else (), checked.refused)

    def carry_leftover(self) -> None:
        """Say in the ledger which renames of its newest entry failed: until then it would promise too much."""

        def decide(state: LedgerState) -> Draft | None:
            known = set(state.pending)
            news = any(each.rename not in known for each in self.finishing.leftover.renames)
            return Draft(EntryKind.IDLE) if news else None

        if self.finishing.leftover:
            self.append(decide)

    def append(self, decide: Callable[[LedgerState], Draft | None]) -> int | None:
        """Add what `decide` makes of the newest complete state, again after every rival; None if there is nothing."""
        for attempt in range(COMMIT_ATTEMPTS_MAX):
            state = self.complete()
            draft = decide(state)
            if draft is None:
                return None
            entry = self._entry(draft, state)
            if self.ledger.append(entry):
                self.environment.reach("entry_written")
                self.finishing.own_number = entry.number
                self.failures.clear()
                self.complete()
                self.environment.reach("renamed")
                if entry.number % SNAPSHOT_EVERY == 0:
                    self.ledger.keep_snapshot(state)
                return entry.number
            self.environment.back_off(attempt, _BACKOFF_SECONDS_MAX)
        raise TransientError(f"gave up writing to {self.job.table.path}: too many other entries")

    def complete(self) -> LedgerState:
        """Finish the newest entry, whoever wrote it: nobody adds the next one before (RULES L1)."""
        return self.finishing.complete()

    def failing_types(self) -> dict[str, str]:
        """The types whose files could not be moved to their place, or into their tables, with the reason."""
        return {each.rename.type: each.reason for each in self.finishing.leftover.renames} | self.refusals

    def _entry(self, draft: Draft, state: LedgerState) -> Entry:
        starts = [each for each in draft.parts if isinstance(each, StartPart)]
        fences = [each for each in draft.parts if isinstance(each, FencePart)]
        routed = [each for each in draft.parts if isinstance(each, RoutedPart)]
        after = self.export.days.complete_after_seconds
        leftover = self.finishing.leftover
        now = self.environment.now()
        now_ms = int(now * MILLIS_PER_SECOND)
        entry = Entry(
            number=state.number + 1,
            kind=draft.kind,
            job=self.job.name,
            batch_id=draft.batch_id,
            at=now,
            starts=tuple(StartRecord(each.partition, each.offset, each.token) for each in starts),
            fences=tuple(FenceRecord(each.partition, each.token) for each in fences),
            slices=tuple(slice_record(each, state.of(each.partition)) for each in routed),
            types=draft.types,
            idle=tuple(draft.idle.items()),
            renames=draft.renames,
            removes=draft.removes,
            pending=tuple(each.rename for each in leftover.renames if each.rename not in draft.dropped),
            pending_removes=leftover.removes,
            pending_marks=leftover.marks,
            dropped=draft.dropped,
            retired=draft.retired,
            failures={name: count for name, count in self.failures.items() if name in state.types},
            routings=draft.routings,
            replay=draft.replay,
        )
        entry = structs.replace(entry, reopened=tuple(reopened_by(entry.writers, state, after, now_ms).items()))
        return structs.replace(entry, closed=closable(apply(state, entry), after, now_ms))

    def renames_of(self, part: RoutedPart, state: LedgerState) -> Iterable[Rename]:
        """Staged name to final name of every file of a slice."""
        life, place = state.life_of(part.partition), (part.partition.topic_id, part.partition.number)
        for name, share in part.written.items():
            for file in share.files:
                folder = day_folder(name, str(file.partition_values["day"]))
                target = f"{folder}/{final_name(self.space, part.partition, life, file.last_offset or 0)}"
                start = part.takes.get(name, part.piece.start)
                yield Rename(file.path, target, name, *place, start, rows=file.rows, size_bytes=file.size_bytes)

    def ahead_of(self, partition: Partition, name: str, start: int) -> int:
        """From which offset on a type lacks the records of a slice; files and positions land together, so all of it."""
        return start

    # types

    def decoded_of(self, name: str) -> pa.Schema | None:
        """The fixed columns of a type under the names that its records have: the job's, where it states them."""
        fixed, spec = self.ledger.known.schema_of(name), self.export.all_types[name]
        return fixed if fixed is None or spec.schema is None else respelled(fixed, spec.schema)

    def columns_of(self, name: str) -> pa.Schema | None:
        """The columns of a type's files: its fixed ones and those that are computed; None while they are unknown."""
        fixed, decoded = self.ledger.known.schema_of(name), self.decoded_of(name)
        if fixed is None or decoded is None:
            return None
        stated = name in self.export.types
        computed = [
            pa.field(column, output_type(expression, decoded))
            for column, expression in self.job.columns.items()
            # The table of unknown types has no fields to compute from.
            if stated or not any(fields(expression))
        ]
        return pa.schema([*fixed, *computed])

    def agree_on_types(self) -> LedgerState:
        """Enter the routing and the types that the table does not know yet, each where the job file says it begins."""
        specs = self.export.all_types
        if self.state().number == 0:
            refuse_files_without_ledger(self.storage, self.job)
        else:
            self.refuse_older_ledger()
        self.refuse_other_names()

        def decide(state: LedgerState) -> Draft | None:
            strangers = sorted(state.types.keys() - specs.keys())
            if strangers:
                raise UserError(
                    f"the table has types that the job file does not name: {', '.join(strangers)}",
                    detail="this job file may be older than the one that added them",
                    hint="name them; a type that is not wanted any more is kept with `values: []`",
                )
            changes = {name: self._type_change(spec, state) for name, spec in specs.items()}
            stated = {name: record for name, record in changes.items() if record is not None}
            routings = {} if self.routing.id in state.routings else {self.routing.id: self.routing.text}
            return Draft(EntryKind.TYPES, types=stated, routings=routings) if stated or routings else None

        self.append(decide)
        return self.ledger.refresh()

    def refuse_older_ledger(self) -> None:
        """Stop if files tell of entries that the ledger does not have."""
        if self.export.format == "parquet":
            refuse_older_ledger(self.storage, self.job, self.space, self.ledger.refresh)

    def change_schema(self, name: str, schema: pa.Schema) -> None:
        """Fix the columns that records of a type brought; those that another process fixed first stay as they are."""

        def decide(state: LedgerState) -> Draft | None:
            known = state.schema_of(name)
            # A rival may have fixed a type first: it stands, and records that do not fit it will say so.
            merged = schema if known is None else grown(known, schema)
            return None if merged == known else Draft(EntryKind.TYPES, types={name: TypeRecord(schema_text(merged))})

        self.append(decide)

    def _type_change(self, spec: TypeSpec, state: LedgerState) -> TypeRecord | None:
        """What the job file says of a type that the ledger does not: the type itself, or further columns."""
        if spec.name not in state.types:
            return self._new_type(spec, state)
        if spec.schema is None:
            return None
        known = state.schema_of(spec.name)
        wanted = spec.schema if known is None else extended(known, spec.schema, spec.name)
        return None if wanted == known else TypeRecord(schema_text(wanted))

    def _new_type(self, spec: TypeSpec, state: LedgerState) -> TypeRecord:
        schema = "" if spec.schema is None else schema_text(spec.schema)
        started = any(here.position is not None for here in state.partitions.values())
        if not started:
            return TypeRecord(schema, TypeStart.NOW)
        if spec.start is None:
            raise UserError(
                f"type {spec.name} is new to a table that already has positions",
                hint=f"say where it begins: types.{spec.name}.start: beginning, or now",
            )
        return TypeRecord(schema, spec.start, self.routing.id)

    # places

    def refuse_other_names(self) -> None:
        """Refuse a job file under which the files that are there would no longer be ours."""
        known = {each.topic for each in self.ledger.refresh().partitions}
        self.claims.refuse_other_names(known.union(self.job.log.topics))

    def probe(self, name: str, days: Iterable[str]) -> str | None:
        """Why files cannot be put into the folders of a type; None if they can (RULES L4)."""
        for folder in sorted({day_folder(name, day) for day in days} - self._probed):
            if (reason := self.probe_folder(name, folder)) is not None:
                return reason
            self._probed.add(folder)
        return None

    def probed(self, name: str) -> str:
        """The folder below which probes of a type are put."""
        return name

    def type_table(self, name: str) -> Table | None:
        """The table of a type, if it has one of its own and has had rows."""
        return None

    def type_tables(self) -> list[Table]:
        return [table for name in self.export.all_types if (table := self.type_table(name)) is not None]

    def probe_folder(self, name: str, folder: str) -> str | None:
        """Why nothing can be put into a folder of a type; None if it can."""
        path = f"{folder}/{PROBE}{new_batch_id()}"
        try:
            self.storage.put(path, b"")
            self.storage.delete(path)
        except PenstockError as error:
            self.failures[name] += 1
            return error.primary
        return None

    def replay_target(self, file: StagedFile, name: str, entry: int, number: int) -> str:
        """Where readers find a file of a replay; `number` tells it from the other files of its entry."""
        folder = day_folder(name, str(file.partition_values["day"]))
        return f"{folder}/{output_name('replayed', self.job.name, entry, number)}"

    def replay_refusal(self, name: str, days: Iterable[str], run: int) -> str | None:
        """Why a type would not take the files of a replay run; None if it would."""
        return self.probe(name, days)

    def runs_taken(self) -> int:
        """The last replay run that any type knows of by itself; 0: they know only what the ledger says."""
        return 0

    def forget_probes(self, name: str) -> None:
        """A type that failed is looked at again before its next files are named."""
        self.refusals.pop(name, None)
        self._probed = {folder for folder in self._probed if not folder.startswith(f"{name}/")}
