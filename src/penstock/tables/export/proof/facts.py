"""Reads what an export's ledger says, entry by entry, all as of one number; and keeps what was proved of it.

What is kept lies beside the ledger, so that the next verification reads only newer entries. It names the entry that it
ends with and carries a digest of itself; what is of another chain or version, or damaged, is passed over
(docs/protocol.md, "What `verify` proves").
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.environment import Environment
from penstock.errors import InvariantError, PenstockError
from penstock.job.spec import JobSpec
from penstock.lake.delta.provenance import placed
from penstock.lake.delta.table import Table
from penstock.lake.storage import Storage
from penstock.logs.log import Partition
from penstock.proof.findings import Check
from penstock.tables.export.delta_types import open_export
from penstock.tables.export.ledger.entry import Entry, EntryKind
from penstock.tables.export.ledger.state import LedgerState, TypeDay
from penstock.tables.export.old_proof.footers import QuarantineFiles
from penstock.tables.export.old_proof.offsets.owners import TopicIncarnations
from penstock.tables.export.old_proof.offsets.table import DataFile
from penstock.tables.export.proof.chain import Chain, Track
from penstock.tables.export.replays import last_run
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.table import ExportTable
from penstock.tables.quarantine.life import appended_up_to
from penstock.tables.quarantine.replayed import ReplayRun, run_number
from penstock.tables.quarantine.table import open_quarantine

ENTRIES_AT_ONCE = 16
ENTRIES_PER_READ = 512
VERSION = 2
"""Of what is kept."""
_DIGEST = "sha256"


@dataclass(frozen=True, slots=True)
class Proved:
    """The chain up to an entry, which `batch_id` identifies."""

    number: int
    batch_id: str
    chain: Chain
    since: str
    """When its first entries were read, as ISO 8601."""
    until: str
    """When its last ones were."""

    def __str__(self) -> str:
        when = f"on {self.until}" if self.since == self.until else f"from {self.since} to {self.until}"
        return f"entries up to {self.number} were proved {when} and not read again (--all reads them)"


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The ledger of a job at one number, with what its entries tell."""

    table: ExportTable
    state: LedgerState
    chain: Chain
    slices: Check
    quarantine: QuarantineFiles
    proved: Proved
    """What was proved before, on which this reading builds, and when it was read."""
    last: Entry | None = None
    """The newest entry, if it was not proved before."""
    unfinished: ReplayRun | None = None
    """The newest replay run, if its rows may still be in quarantine too (RULES Q2)."""


@dataclass(slots=True)
class _Reading:
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
    if state.number == 0 and not table.ledger.numbers():
        return None
    read_at = datetime.fromtimestamp(environment.now(), UTC).isoformat(timespec="seconds")
    known = None if from_first or deleted is not None else _known(table, state.number)
    proved = known or Proved(0, "", Chain(deleted=deleted or {}), read_at, read_at)
    reading = _read(table, quarantine, state.number, proved)
    slices = proved.chain.close(state, reading.missing)
    detail = f"{slices.detail}; {proved}" if proved.number else slices.detail
    owes = quarantine is not None and state.replay_run > run_number(quarantine)
    return LedgerFacts(
        table=table,
        state=state,
        chain=proved.chain,
        slices=replace(slices, detail=detail, facts={**slices.facts, "entries_read": reading.count}),
        quarantine=QuarantineFiles.of(job, quarantine, reading.pending, state.life),
        last=reading.last,
        proved=replace(proved, until=read_at),
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


def _read(table: ExportTable, quarantine: Table | None, last: int, proved: Proved) -> _Reading:
    """Put all entries up to `last` upon the chain, and look whether there are any after a number that is free."""
    reading = _Reading()
    life = table.state().life
    numbers = table.ledger.numbers(proved.number)
    first = proved.number + 1 if proved.number else min(numbers, default=1)
    for number, entry in _entries(table, first, last):
        reading.count += 1
        if entry is None:
            reading.missing.append(number)
            continue
        reading.last = entry
        if number == first and number > 1 and not proved.number and entry.kind is not EntryKind.REBUILD:
            reading.missing.append(1)
        proved.chain.add(entry)
        for piece in entry.slices:
            if piece.quarantine and number > appended_up_to(quarantine, table.job.name, life, piece.partition):
                reading.pending += [DataFile(each.path, each.rows, each.size_bytes) for each in piece.quarantine]
    beyond = sorted(number for number in numbers if number > last)
    # Entries that came while we looked go on at the next number; others lie beyond one that is gone.
    if beyond and beyond[0] != last + 1:
        reading.missing.append(last + 1)
    return reading


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
    numbers = table.ledger.numbers()
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


# what is kept


def read_proved(storage: Storage, path: str) -> Proved | None:
    """What is kept, if anything that can be used."""
    try:
        body = json.loads(storage.read(path))
        return _proved(body) if body["v"] == VERSION and body.pop(_DIGEST) == _digest(body) else None
    except (PenstockError, ValueError, KeyError, TypeError, AttributeError, msgspec.ValidationError):
        return None


def encode_proved(proved: Proved) -> bytes:
    chain = proved.chain
    body = {
        "v": VERSION,
        "number": proved.number,
        "batch": proved.batch_id,
        "since": proved.since,
        "until": proved.until,
        "tracks": [{"partition": placed(each), **msgspec.to_builtins(track)} for each, track in chain.tracks.items()],
        "files": dict(chain.files),
        "days": [[*day, rows, chain.last_written[day]] for day, rows in chain.days.items()],
        "first_closed": _pairs(chain.first_closed),
        "deleted": _pairs(chain.deleted),
        "deleted_rows": _pairs(chain.deleted_rows),
        "rebuilt": chain.rebuilt,
        "slices": chain.slices,
    }
    return json.dumps({**body, _DIGEST: _digest(body)}, separators=(",", ":")).encode()


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, separators=(",", ":"), sort_keys=True).encode()).hexdigest()


def _proved(body: Mapping[str, Any]) -> Proved:
    chain = Chain(
        tracks={Partition(*each["partition"]): msgspec.convert(each, Track) for each in body["tracks"]},
        deleted=_days(body["deleted"]),
        files=dict(body["files"]),
        days={(name, day): rows for name, day, rows, _ in body["days"]},
        last_written={(name, day): number for name, day, _, number in body["days"]},
        first_closed=_days(body["first_closed"]),
        deleted_rows=_days(body["deleted_rows"]),
        rebuilt=body["rebuilt"],
        slices=body["slices"],
    )
    return Proved(body["number"], body["batch"], chain, body["since"], body["until"])


def _pairs(days: Mapping[TypeDay, int]) -> list[list[Any]]:
    return [[*day, number] for day, number in days.items()]


def _days(pairs: list[list[Any]]) -> dict[TypeDay, int]:
    return {(name, day): number for name, day, number in pairs}
