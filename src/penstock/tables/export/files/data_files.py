"""The data files of a job below its root: their names, their footers, and those that the ledger cannot know.

A footer tells under the key `penstock` of a batch what `flow.route.type_files` notes, of a compacted file the same of
every file whose rows it holds (RULES L6).

A ledger cannot know files if it was lost, or is older than they are because an older copy was put back. Names tell
partition and last offset, or the entry: neither is beyond what the ledger says, since a file gets its name after its
entry. A job that went on from older positions would write once more what such files hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import InvariantError, UserError
from penstock.flow.route.type_files import FOOTER_KEY
from penstock.job.spec import JobSpec
from penstock.lake.storage import NotFoundError, Storage
from penstock.tables.export.ledger.claimed import known_owner
from penstock.tables.export.ledger.days import MILLIS_PER_SECOND, watermark_of
from penstock.tables.export.ledger.fold import RESTORE
from penstock.tables.export.ledger.names import (
    FinalName,
    NameSpace,
    claim_of,
    day_folder,
    is_own_output,
    output_entry,
    parse_final_name,
    type_and_day,
)
from penstock.tables.export.ledger.state import LedgerState, RoutedPartition
from penstock.tables.export.spec import ExportSpec

FOOTERS_AT_ONCE = 16
DAMAGED_FILE = "the file is damaged or not of Penstock: put a good copy back, or delete its day as a whole"
COMPACTED = "compacted"
VERSION = 1
FOOTERS_READ_MAX = 100
"""Of files that look as if the ledger did not know them: more of them are no proof either."""

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that readers see, by its place and name; `name` is None for an output of compaction or of a replay."""

    path: str
    type: str
    day: str
    size_bytes: int
    name: FinalName | None
    modified_at: datetime
    """When it got its name, where a rename is a copy."""


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says of itself."""

    rows: int
    schema: pa.Schema
    facts: Facts
    """Empty if the file has no word of ours; that of a compacted or replayed one tells its staged name (`source`)."""


def own_files(storage: Storage, folder: str, job: str, is_own: Callable[[str], bool]) -> Iterator[DataFile]:
    """The data files below a folder that a job wrote; `is_own` tells whether it is one whose names begin so."""
    for entry in storage.list(folder):
        place, name = type_and_day(entry.path), parse_final_name(entry.path)
        ours = is_own_output(entry.path, job) if name is None else is_own(name.space)
        if place is not None and ours:
            yield DataFile(entry.path, *place, entry.size_bytes, name, entry.modified_at)


def read_footer(storage: Storage, path: str) -> Footer:
    """Raises `NotFoundError` for a file that is gone and `InvariantError` for one that is no Parquet of ours."""
    try:
        with storage.open_reader(path) as source:
            metadata = pq.read_metadata(source)
        words = (metadata.metadata or {}).get(FOOTER_KEY.encode())
        facts = {} if words is None else json.loads(words)
    except (pa.ArrowException, ValueError) as error:
        raise InvariantError(f"cannot read the footer of {path}", detail=str(error), hint=DAMAGED_FILE) from error
    return Footer(metadata.num_rows, plain(metadata.schema.to_arrow_schema()), facts)


def read_footers(storage: Storage, paths: Iterable[str]) -> Iterator[Footer | InvariantError | None]:
    """The footers of files in their order; None for one that is gone."""

    def read(path: str) -> Footer | InvariantError | None:
        try:
            return read_footer(storage, path)
        except NotFoundError:
            return None
        except InvariantError as error:
            return error

    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        yield from pool.map(read, paths)


def plain(schema: pa.Schema) -> pa.Schema:
    """Names and types alone: what else a file notes of its columns is its own."""
    return pa.schema([pa.field(each.name, each.type) for each in schema])


def replaced_facts(path: str, size_bytes: int, footer: Footer) -> list[dict[str, Any]]:
    """What the footer of a compacted file tells of a file whose rows it takes over; nested ones come out flat."""
    if footer.facts.get("kind") == COMPACTED:
        return [dict(each) for each in footer.facts["replaces"]]
    return [{**footer.facts, "path": path, "rows": footer.rows, "size_bytes": size_bytes}]


def compacted_facts(name: str, day: str, source: str, replaces: list[dict[str, Any]]) -> dict[str, str]:
    body = {"v": VERSION, "kind": COMPACTED, "type": name, "day": day, "source": source, "replaces": replaces}
    return {FOOTER_KEY: json.dumps(body, separators=(",", ":"))}


# files that the ledger cannot know


def refuse_older_ledger(storage: Storage, job: JobSpec, space: NameSpace, refresh: Callable[[], LedgerState]) -> None:
    """Stop before anything is written twice. Looks at the days that are not complete: newer files are there."""
    known = refresh()
    listed = [path for name in known.types for path in _recent_files(storage, name, known)]
    # Read after the listing: another process of the job may be at work.
    beyond = list(islice(files_beyond(listed, job.name, space, refresh()), FOOTERS_READ_MAX))
    # Somebody may have put another file under such a name.
    footers = zip(beyond, read_footers(storage, beyond), strict=True)
    found = next((path for path, footer in footers if isinstance(footer, Footer) and footer.facts), None)
    if found is not None:
        raise UserError(
            f"{job.table.path} has data files such as {found} that are beyond what the ledger of the job knows",
            detail="the ledger is older than the files: the records in them would be written again",
            hint=RESTORE,
        )


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
        topic_id = lives[name.life - 1] if 1 <= name.life <= len(lives) else ""
        here = heads.get((topic_id, name.partition), RoutedPartition())
        position = here.lanes[place[0]].position if place[0] in here.lanes else here.position
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
        try:
            found = next(unclaimed_files(storage, job.name, name), None)
        except UserError:
            # A folder that cannot be read is its type's own trouble.
            continue
        if found is not None:
            raise UserError(
                f"{job.table.path} has data files such as {found.path} and no ledger of the job",
                detail="the ledger keeps the positions; without it every record would be written again",
                hint="restore its newest copy, or rebuild it from the files: penstock verify JOB --rebuild",
            )


def unclaimed_files(storage: Storage, job: str, folder: str = "") -> Iterator[DataFile]:
    """All data files that may be this job's, since no other one has reserved their names."""
    owner = cache(lambda space: known_owner(storage, claim_of(space)))
    return own_files(storage, folder, job, lambda space: owner(space) in (None, job))
