"""Discarding the quarantined records of a job, in one commit to the quarantine; the data is only read.

Afterwards the quarantine is empty, and what commits of the job's table listed until then counts as appended: also
records that were deleted with the folder of the quarantine.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.environment import Environment
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import replay_key
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.tables.quarantine.rows import count_rows
from penstock.tables.quarantine.table import Listings, create_quarantine, open_quarantine


@dataclass(frozen=True, slots=True)
class DiscardReport:
    """What was, or would be, discarded."""

    rows: int = 0
    """In the quarantine."""
    unappended: bool = False
    """Whether commits of the table list further records, which were never appended or were deleted."""


def preview_discard(job: JobSpec, listings: Listings | None, environment: Environment) -> DiscardReport:
    """What `discard` would do; `listings` are None while the job has no table."""
    if listings is None:
        return DiscardReport()
    return _preview(open_quarantine(job, listings.url, environment), listings)


def discard(job: JobSpec, listings: Listings | None, environment: Environment) -> DiscardReport:
    """Discard all quarantined records of the job. A crash leaves everything as it was, or all of it done."""
    report = preview_discard(job, listings, environment)
    if listings is None or report == DiscardReport():
        return report
    table = create_quarantine(job, listings.url, environment)

    def decide() -> Change | None:
        nonlocal report
        report = _preview(table, listings)
        numbers = {**listings.marks, replay_key(job.name): listings.replay_run}
        raised = {key: number for key, number in numbers.items() if (table.transaction(key) or 0) < number}
        removals = [table.remove_action(file) for file in table.active_files()]
        if not removals and not raised:
            return None
        return Change([*removals], raised, Provenance(kind="discarded", job=job.name, rows=report.rows).metadata)

    table.swap(decide, "discard_checked")
    environment.reach("discarded")
    return report


def _preview(quarantine: Table | None, listings: Listings) -> DiscardReport:
    if quarantine is None:
        return DiscardReport(unappended=bool(listings.marks))
    unappended = any((quarantine.transaction(key) or 0) < mark for key, mark in listings.marks.items())
    return DiscardReport(count_rows(quarantine), unappended)
