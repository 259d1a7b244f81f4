"""Data files that a ledger cannot know: it was lost, or is older than they are because an older copy was put back.

Names tell partition and last offset, or the entry: neither is beyond what the ledger says, since a file gets its name
after its entry. A job that went on from older positions would write once more what such files hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice

from penstock.errors import InvariantError, UserError
from penstock.job.spec import JobSpec
from penstock.lake.storage import NotFoundError, Storage
from penstock.tables.export.days.days import MILLIS_PER_SECOND, watermark_of
from penstock.tables.export.files.data_files import read_footer
from penstock.tables.export.ledger.claimed import known_owner
from penstock.tables.export.ledger.names import (
    NameSpace,
    claim_of,
    day_folder,
    is_own_output,
    output_entry,
    parse_final_name,
    type_and_day,
)
from penstock.tables.export.ledger.state import LedgerState
from penstock.tables.export.spec import ExportSpec

FOOTERS_READ_MAX = 100
"""Of files that look as if the ledger did not know them: more of them are no proof either."""
WHAT_TO_DO = (
    "put the newest copy of _penstock/ back; if there is none, move ledger/, snapshots/ and last_snapshot.json "
    "of the job away and make the ledger again from the files: penstock verify JOB --rebuild"
)


def refuse_older_ledger(storage: Storage, job: JobSpec, space: NameSpace, refresh: Callable[[], LedgerState]) -> None:
    """Stop before anything is written twice. Looks at the days that are not complete: newer files are there."""
    known = refresh()
    listed = [path for name in known.types for path in _recent_files(storage, name, known)]
    # Read after the listing: another process of the job may be at work.
    beyond = files_beyond(listed, job.name, space, refresh())
    found = next((path for path in islice(beyond, FOOTERS_READ_MAX) if _is_ours(storage, path)), None)
    if found is not None:
        raise UserError(
            f"{job.table.path} has data files such as {found} that are beyond what the ledger of the job knows",
            detail="the ledger is older than the files: the records in them would be written again",
            hint=WHAT_TO_DO,
        )


def _is_ours(storage: Storage, path: str) -> bool:
    """Whether Penstock wrote the file: somebody may have put another one under such a name."""
    try:
        return bool(read_footer(storage, path).facts)
    except (NotFoundError, InvariantError):
        return False


def files_beyond(paths: Iterable[str], job: str, space: NameSpace, state: LedgerState) -> Iterator[str]:
    """Those of the job's files that no entry up to this state can have named; the state was read after the listing."""
    waiting = {each.target for each in (*state.unfinished.renames, *state.pending)}
    heads = {(each.topic_id, each.number): here for each, here in state.partitions.items()}
    lives_of = {space.of(topic): lives for topic, lives in state.lives().items()}
    for path in paths:
        place, entry = type_and_day(path), output_entry(path, job)
        if entry is not None and entry > state.number:
            yield path
        name = parse_final_name(path)
        if place is None or name is None or name.space not in lives_of or path in waiting:
            continue
        lives = lives_of[name.space]
        here = heads.get((lives[name.life - 1], name.partition)) if 1 <= name.life <= len(lives) else None
        lane = here.lanes.get(place[0]) if here is not None else None
        position = lane.position if lane is not None else here.position if here is not None else None
        if position is None or name.last_offset >= position:
            yield path


def _recent_files(storage: Storage, name: str, state: LedgerState) -> list[str]:
    """The files of a type from its first day on that is not complete: start-up must not cost more with every day.

    A folder that cannot be read is its type's own trouble.
    """
    days = [day for each, day in state.open_days if each == name]
    mark_ms = watermark_of(state, name)
    if mark_ms is not None:
        days.append(datetime.fromtimestamp(mark_ms / MILLIS_PER_SECOND, UTC).date().isoformat())
    after = day_folder(name, min(days)) if days else ""
    try:
        return [each.path for each in storage.list(name, after)]
    except UserError:
        return []


def refuse_files_without_ledger(storage: Storage, job: JobSpec[ExportSpec]) -> None:
    """Files of ours and no ledger: it was lost, and beginning anew would write everything twice."""
    for name in job.table.all_types if job.table.format == "parquet" else ():
        found = _first_file_of(storage, job.name, name)
        if found is not None:
            raise UserError(
                f"{job.table.path} has data files such as {found} and no ledger of the job",
                detail="the ledger keeps the positions; without it every record would be written again",
                hint="restore its newest copy, or rebuild it from the files: penstock verify JOB --rebuild",
            )


def _first_file_of(storage: Storage, job: str, name: str) -> str | None:
    """A data file of a type that may be ours; a folder that cannot be read is its type's own trouble."""
    try:
        listed = (each.path for each in storage.list(name))
        return next((each for each in listed if type_and_day(each) and not _is_of_another(storage, job, each)), None)
    except UserError:
        return None


def _is_of_another(storage: Storage, job: str, path: str) -> bool:
    found = parse_final_name(path)
    if found is None:
        return not is_own_output(path, job)
    return known_owner(storage, claim_of(found.space)) not in (None, job)
