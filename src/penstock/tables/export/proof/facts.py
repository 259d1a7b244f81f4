"""Reads what an export's ledger says, entry by entry, all as of one number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from penstock.environment import Environment
from penstock.errors import InvariantError
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.proof.findings import Check
from penstock.proof.footers import QuarantineFiles
from penstock.proof.offsets.owners import TopicIncarnations
from penstock.proof.offsets.table import DataFile
from penstock.tables.export.delta_types import open_export
from penstock.tables.export.ledger.entry import Entry, EntryKind
from penstock.tables.export.ledger.state import LedgerState, TypeDay
from penstock.tables.export.proof.chain import Chain
from penstock.tables.export.proof.proved import Proved, read_proved
from penstock.tables.export.replays import last_run
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.table import ExportTable
from penstock.tables.quarantine.life import appended_up_to
from penstock.tables.quarantine.replayed import ReplayRun, run_number
from penstock.tables.quarantine.table import open_quarantine

ENTRIES_AT_ONCE = 16
ENTRIES_PER_READ = 512


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The ledger of a job at one number, with what its entries tell."""

    table: ExportTable
    state: LedgerState
    chain: Chain
    slices: Check
    quarantine: QuarantineFiles
    incarnations: TopicIncarnations
    last: Entry | None = None
    """The newest entry, if it was not proved before."""
    read_at: str = ""
    """When, as ISO 8601."""
    known: Proved | None = None
    """What was proved before, on which this reading builds."""
    unfinished: ReplayRun | None = None
    """The newest replay run, if its rows may still be in quarantine too (RULES Q2)."""


@dataclass(slots=True)
class _Reading:
    chain: Chain
    count: int = 0
    """How many entries were read."""
    missing: list[int] = field(default_factory=list)
    last: Entry | None = None
    """The newest entry that was read."""
    pending: list[DataFile] = field(default_factory=list)


def read_ledger(
    job: JobSpec[ExportSpec], deleted: Mapping[TypeDay, int] | None = None, *, from_first: bool = False
) -> LedgerFacts | Check | None:
    """Read everything that the ledger holds; None while there is none. `deleted` are days as `Chain` knows them.

    A ledger whose entries cannot be put one upon the other has no state: then the violated check comes back.

    What an earlier verification proved is not read again, unless days were deleted since or `from_first` asks for it:
    how many rows of a deleted day each slice had, only its entry tells.

    The quarantine is opened first: it follows the ledger, so it can only lag, and by how much is known.
    """
    environment = Environment()
    quarantine = open_quarantine(job, environment)
    table = open_export(job, environment)
    try:
        state = table.ledger.refresh()
    except InvariantError as error:
        return _broken(table, error)
    if state.number == 0 and not _numbers(table):
        return None
    proved = None if from_first or deleted is not None else _known(table, state.number)
    reading = _read(table, quarantine, state.number, proved, Chain(deleted=deleted or {}))
    owes = quarantine is not None and state.replay_run > run_number(quarantine)
    return LedgerFacts(
        table=table,
        state=state,
        chain=reading.chain,
        slices=_told(reading.chain.close(state, reading.missing), reading.count, proved),
        quarantine=QuarantineFiles.of(job, quarantine, reading.pending, state.life),
        incarnations=incarnations_of(state),
        last=reading.last,
        read_at=datetime.fromtimestamp(environment.now(), UTC).isoformat(timespec="seconds"),
        known=proved,
        unfinished=last_run(table, state) if owes else None,
    )


def _known(table: ExportTable, last: int) -> Proved | None:
    """What is proved already of this very chain."""
    proved = read_proved(table.storage, table.places.proved)
    if proved is None or proved.number > last:
        return None
    try:
        entry = table.ledger.read(proved.number)
    except InvariantError:
        return None
    return proved if entry is not None and entry.batch_id == proved.batch_id else None


def _told(slices: Check, count: int, proved: Proved | None) -> Check:
    """The invariant of the slices, with what was not read for it."""
    facts = {**slices.facts, "entries_read": count}
    return replace(slices, detail=slices.detail if proved is None else f"{slices.detail}; {proved}", facts=facts)


def _read(table: ExportTable, quarantine: Table | None, last: int, proved: Proved | None, none: Chain) -> _Reading:
    """Go through all entries up to `last`, and look whether there are any after a number that is free.

    They are put upon the chain that is proved, or upon `none`.
    """
    reading = _Reading(none if proved is None else proved.chain)
    life = table.state().life
    numbers = _numbers(table, 0 if proved is None else proved.number)
    first = min(numbers, default=1) if proved is None else proved.number + 1
    for number, entry in _entries(table, first, last):
        reading.count += 1
        if entry is None:
            reading.missing.append(number)
            continue
        reading.last = entry
        if number == first and number > 1 and proved is None and entry.kind is not EntryKind.REBUILD:
            reading.missing.append(1)
        reading.chain.add(entry)
        for piece in entry.slices:
            if piece.quarantine and number > appended_up_to(quarantine, table.job.name, life, piece.partition):
                reading.pending += [DataFile(each.path, each.rows, each.size_bytes) for each in piece.quarantine]
    beyond = sorted(number for number in numbers if number > last)
    # Entries that came while we looked go on at the next number; others lie beyond one that is gone.
    if beyond and beyond[0] != last + 1:
        reading.missing.append(last + 1)
    return reading


def _numbers(table: ExportTable, after: int = 0) -> list[int]:
    """The numbers of the entries that are there, above one."""
    listed = table.storage.list(table.places.entries, table.places.entry(after) if after else "")
    stems = [entry.path.rsplit("/", 1)[-1].removesuffix(".json") for entry in listed]
    return [int(stem) for stem in stems if stem.isdecimal()]


def _entries(table: ExportTable, first: int, last: int) -> Iterator[tuple[int, Entry | None]]:
    """The entries in their order, a bounded number of them in memory; None for one that cannot be read."""

    def read(number: int) -> Entry | None:
        try:
            return table.ledger.read(number)
        except InvariantError:
            return None

    with ThreadPoolExecutor(ENTRIES_AT_ONCE) as pool:
        for start in range(first, last + 1, ENTRIES_PER_READ):
            numbers = range(start, min(last + 1, start + ENTRIES_PER_READ))
            yield from zip(numbers, pool.map(read, numbers), strict=True)


def _broken(table: ExportTable, error: InvariantError) -> Check:
    """Where the chain breaks, as far as its entries tell."""
    numbers: Sequence[int] = _numbers(table)
    chain = Chain()
    chain.texts.append(str(error))
    for _, entry in _entries(table, min(numbers, default=1), max(numbers, default=0)):
        if entry is not None:
            chain.add(entry)
    return chain.check(max(numbers, default=0))


def incarnations_of(state: LedgerState) -> TopicIncarnations:
    """The partitions of topics as they are, and of topics that were recreated since."""
    current = sorted(partition for partition, _ in state.current())
    return TopicIncarnations(
        current=tuple(current),
        retired=tuple(sorted(state.partitions.keys() - set(current))),
        fingerprints={topic: known for topic, known in state.fingerprints.items() if known is not None},
    )
