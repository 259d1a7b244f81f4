"""Discarding the quarantined records of a job: one commit to the quarantine, whatever state it was left in.

Afterwards it holds no row of the job, belongs to the present life of its table, and takes for dealt with all that the
table's commits listed so far. Rows of other jobs stay, and the data table is only read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow.compute as pc
from deltalake.transaction import AddAction, RemoveAction

from penstock.environment import Environment
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name
from penstock.job.spec import JobSpec
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.keys import replay_key, table_key
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.tables.quarantine.life import belongs_to, positions_in
from penstock.tables.quarantine.replayed import replacement, rewritten
from penstock.tables.quarantine.rows import count_rows, is_of, own_files, own_rows
from penstock.tables.quarantine.table import create_quarantine, open_quarantine

_MARK = "#quarantine"


@dataclass(frozen=True, slots=True)
class Listings:
    """What the table of a job says now: which one it is, and up to where its commits listed quarantine files."""

    life: int | None = None
    """None: there is no table."""
    marks: Mapping[str, int] = field(default_factory=dict)
    """By the keys of the positions in the quarantine."""
    replay_run: int = 0


ReadListings = Callable[[JobSpec, Environment], Listings]
"""What the kind of the job's table tells of its commits."""


@dataclass(frozen=True, slots=True)
class DiscardReport:
    """What was, or would be, discarded."""

    rows: int = 0
    """In the quarantine."""
    unappended: bool = False
    """Whether commits of the table list further records, which never got there or are gone from it."""
    earlier_table: bool = False
    """Whether the rows belong to an earlier life of the table: the present one has read them again, or will."""


def listed_marks(transactions: Mapping[str, int]) -> dict[str, int]:
    """Up to where commits of a Delta table list files for its quarantine, by the keys of positions."""
    return {key.removesuffix(_MARK): end for key, end in transactions.items() if key.endswith(_MARK)}


def preview_discard(job: JobSpec, read: ReadListings, environment: Environment) -> DiscardReport:
    return _previewed(open_quarantine(job, environment), job.name, read(job, environment))


def discard(job: JobSpec, read: ReadListings, environment: Environment) -> DiscardReport:
    """Discard all quarantined records of the job. A crash leaves everything as it was, or all of it done."""
    quarantine = open_quarantine(job, environment)
    if quarantine is None and not read(job, environment).marks:
        return DiscardReport()
    table = quarantine or create_quarantine(job, environment)
    report = DiscardReport()

    def decide() -> Change | None:
        nonlocal report
        listings = read(job, environment)
        report = _previewed(table, job.name, listings)
        actions = [action for file in own_files(table) for action in _removal(table, file)]
        wanted = _transactions(table, job.name, listings)
        changed = {key: number for key, number in wanted.items() if (table.transaction(key) or 0) != number}
        if not actions and not changed:
            return None
        return Change(actions, changed, Provenance(kind="discarded", job=job.name, rows=report.rows).metadata)

    table.swap(decide, "discard_checked")
    environment.reach("discarded")
    return report


def _previewed(quarantine: Table | None, job: str, listings: Listings) -> DiscardReport:
    if quarantine is None:
        return DiscardReport(unappended=bool(listings.marks))
    same = belongs_to(quarantine, job, listings.life)
    positions = positions_in(quarantine, job) if same else {}
    rows = count_rows(quarantine)
    return DiscardReport(
        rows=rows,
        unappended=any(positions.get(key, 0) < mark for key, mark in listings.marks.items()),
        earlier_table=bool(rows) and not same,
    )


def _transactions(quarantine: Table, job: str, listings: Listings) -> dict[str, int]:
    """Positions of an earlier life begin anew; those of the present one never fall."""
    same = belongs_to(quarantine, job, listings.life)
    found = positions_in(quarantine, job)
    return {
        **{key: max(found.get(key, 0) if same else 0, listings.marks.get(key, 0)) for key in {*found, *listings.marks}},
        table_key(job): listings.life or 0,
        replay_key(job): listings.replay_run,
    }


def _removal(table: Table, file: ActiveFile) -> list[AddAction | RemoveAction]:
    """The actions that take the job's rows out of a file; one that another writer mixed is written again without."""
    if not any(rows.num_rows for rows in own_rows(table, file, ["offset"])):
        return []
    return replacement(table, file, () if is_of(file, table.job) else _without_own(table, file))


def _without_own(table: Table, file: ActiveFile) -> tuple[StagedFile, ...]:
    def name() -> str:
        # The commit lands as the next version or not at all.
        return compacted_name(table.version + 1, uuid.uuid4().hex)

    return rewritten(table, file, name, lambda rows: pc.fill_null(pc.not_equal(rows.column("job"), table.job), True))
