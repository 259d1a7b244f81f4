"""Which files readers see of an export as of one entry of its ledger, and what their footers tell.

The job may run meanwhile. What later entries name is left out; what the checked entry still has to move is read where
it lies; a compaction that came in between has taken files away, and the verification begins anew (`GoneError`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.lake.delta.keys import state_of
from penstock.lake.delta.table import Table, find_table
from penstock.lake.storage import Storage
from penstock.proof.files import GoneError
from penstock.tables.export.delta_types import type_place
from penstock.tables.export.files.data_files import files_beyond
from penstock.tables.export.ledger.entry import Entry
from penstock.tables.export.ledger.fold import RESTORE
from penstock.tables.export.ledger.names import CLAIMS, SUFFIX, is_own_output, parse_final_name, type_and_day
from penstock.tables.export.ledger.state import LedgerState, Rename, TypeDay
from penstock.tables.export.old_proof.footers import NAMES_SHOWN_MAX, examine, named_now, told
from penstock.tables.export.old_proof.offsets.owners import OriginColumns, find_incarnations
from penstock.tables.export.old_proof.offsets.table import DataFile, data_files
from penstock.tables.export.old_proof.sources import TypeFiles
from penstock.tables.export.proof.chain import Chain
from penstock.tables.export.table import ExportTable
from penstock.tables.quarantine.replayed import run_number

_OLDER = f"files are beyond the positions of the ledger, which is an older copy ({RESTORE})"


@dataclass(frozen=True, slots=True)
class Landed:
    """The files of every type, with what is wrong about them."""

    types: Mapping[str, TypeFiles]
    rows: Mapping[str, int]
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    others: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Other jobs whose rows lie in the same files, with the ids of their topics."""


def parquet_files(table: ExportTable, state: LedgerState, chain: Chain, columns: OriginColumns | None) -> Landed:
    """The plain files: what the ledger's entries name, what lies in the folders, and how both differ."""
    listed = {name: _visible(table.storage, name) for name in state.types}
    seen = {path for paths in listed.values() for path in paths}
    named_later = _named_later(table, state.number)
    owned = _Owned(table, state)
    waiting = {each.target: each for each in state.unfinished.renames if each.target not in seen}
    ours = {path for path in seen if owned.is_ours(path)} - named_later - _to_be_removed(table.storage, state, seen)
    faults = [
        told("files that the ledger names are gone", _gone(chain, ours | waiting.keys())),
        told("files are not in the ledger", set() if chain.rebuilt or chain.texts else ours - chain.files.keys()),
        told(_OLDER, files_beyond(ours, table.job.name, table.space, state)),
        told("files are of no job", [path for path in seen if not owned.is_ours(path) and not owned.is_others(path)]),
    ]
    named = [owned.file(path, path) for path in sorted(ours)]
    staged = [owned.file(each.source, each.target) for each in waiting.values()]
    # A file that was seen and is gone was compacted meanwhile.
    found = examine(table.storage, [*named, *staged], columns, waiting.keys)
    types: dict[str, list[DataFile]] = {name: [] for name in state.types}
    for each in found.files:
        types[(each.moves_to or each.path).split("/", 1)[0]].append(each)
    rows = {name: sum(file.rows or 0 for file in each) for name, each in types.items()}
    deleted: Counter[str] = Counter()
    for (name, _), count in chain.deleted_rows.items():
        deleted[name] += count
    counted = {name: each.rows - deleted[name] for name, each in sorted(state.types.items())}
    faults += [
        f"type {name} has {rows[name]} rows, {each} are counted" for name, each in counted.items() if each != rows[name]
    ]
    return Landed(
        types={name: TypeFiles(each) for name, each in types.items()},
        rows=rows,
        faults=(*(each for each in faults if each), *found.faults),
        warnings=(*_waiting([each for each in found.files if each.moves_to is not None]), *_told_deleted(chain)),
    )


def deleted_days(table: ExportTable, state: LedgerState, chain: Chain) -> dict[TypeDay, int]:
    """The days that a person has deleted as a whole, each with the last entry whose rows went with it.

    A day may be deleted once it is complete. Then none of its files is there, or only such as late rows brought later.
    """
    there = {path for name in state.types for path in _visible(table.storage, name)}
    there |= {each.target for each in state.unfinished.renames}
    gone: dict[TypeDay, int] = {}
    kept: dict[TypeDay, int] = {}
    for path, number in chain.files.items():
        day = type_and_day(path)
        if day is not None and path in there:
            kept[day] = min(number, kept.get(day, number))
        elif day is not None:
            gone[day] = max(number, gone.get(day, number))
    seen = {day for path in there if (day := type_and_day(path)) is not None}
    found = {
        day: chain.last_written[day]
        for day, rows in chain.days.items()
        if rows and not {day} & (seen | state.open_days)
    }
    for day, last in gone.items():
        if day in kept and max(last, chain.first_closed.get(day, kept[day])) < kept[day]:
            found[day] = last
    return found


def _gone(chain: Chain, there: Collection[str]) -> list[str]:
    """The files that the ledger names and that are not there although nobody deleted their day."""
    return [
        path
        for path, number in chain.files.items()
        if path not in there and number > chain.deleted.get(type_and_day(path) or ("", ""), 0)
    ]


def _told_deleted(chain: Chain) -> Iterator[str]:
    rows = sum(chain.deleted_rows.values())
    if rows:
        days = sorted({f"{name} {day}" for name, day in chain.deleted_rows})
        shown = ", ".join(days[:NAMES_SHOWN_MAX]) + (" ..." if len(days) > NAMES_SHOWN_MAX else "")
        yield f"{rows} rows of {len(days)} complete days were deleted with their folders and are not checked: {shown}"


def delta_files(table: ExportTable, state: LedgerState, chain: Chain, columns: OriginColumns | None) -> Landed:
    """One Delta table per type. A table may be ahead of the ledger by a commit: its rows beyond do not count yet.

    Neither do files that a replay brought since; those that it has yet to take are counted where they are staged.
    """
    types = dict.fromkeys(state.types, TypeFiles(()))
    rows = dict.fromkeys(state.types, 0)
    others: dict[str, frozenset[str]] = {}
    faults: list[str] = []
    waiting: list[DataFile] = []
    opened = {name: find_table(type_place(table.export, name), table.job.name) for name in state.types}
    # Read after the tables: an entry is there before any table takes its files.
    later = [each for entry in _entries_after(table, state.number) for each in entry.renames]
    for name, own in opened.items():
        if own is None:
            continue
        seen = examine(own.storage(), _known_files(name, own, later), columns, named_now(own))
        staged = examine(own.storage(), _untaken_files(name, own, state), columns)
        faults += [f"type {name}: {each}" for each in (*seen.faults, *staged.faults)]
        waiting += staged.files
        incarnations = find_incarnations(own.transactions(), table.job.name)
        mine = state_of(own.version, own.transaction, table.job.name, state.partitions).partitions.values()
        of_others = incarnations.rows_written - sum(each.totals.written + each.totals.replayed for each in mine)
        rows[name] = seen.rows + staged.rows - of_others
        ends = {each: end for each in state.partitions if (end := state.position_of(each, name)) is not None}
        files = [replace(each, path=f"{name}/{each.path}") for each in (*seen.files, *staged.files)]
        types[name] = TypeFiles(files, ends)
        for job, ids in incarnations.others.items():
            others[job] = others.get(job, frozenset()) | ids
    return Landed(types, rows, tuple(faults), tuple(_waiting(waiting)), others)


def _known_files(name: str, table: Table, later: Iterable[Rename]) -> list[DataFile]:
    """The files of a type's table without those of replays that came after the checked entry."""
    files = data_files(table)
    run = run_number(table)
    unknown = {each.path_in_table for each in later if each.type == name and each.run <= run}
    if not unknown <= {each.path for each in files}:
        raise GoneError(f"rows that were replayed into type {name} meanwhile are in a compacted file already")
    return [each for each in files if each.path not in unknown]


def _untaken_files(name: str, table: Table, state: LedgerState) -> list[DataFile]:
    """The files of replays that a type's table has yet to take."""
    run = run_number(table)
    orders = [each for each in state.unfinished.renames if each.type == name and each.run > run]
    return [DataFile(each.path_in_table, each.rows, each.size_bytes, {"day": each.day}) for each in orders]


def _visible(storage: Storage, name: str) -> list[str]:
    """What a plain reader takes for data below the folder of a type."""
    return [
        entry.path
        for entry in storage.list(name)
        if entry.path.endswith(SUFFIX) and not any(part.startswith(("_", ".")) for part in entry.path.split("/"))
    ]


def _to_be_removed(storage: Storage, state: LedgerState, seen: Collection[str]) -> set[str]:
    """Files that the checked entry takes away: its outputs, staged or in place, have their rows."""
    orders = state.unfinished
    removed = set(orders.removes)
    # Removes come first (RULES L7): once an output is in place, a file that is still there has come back.
    if any(each.waits and each.target in seen for each in orders.renames):
        removed -= {path for path in removed & set(seen) if storage.exists(path)}
    return removed


def _named_later(table: ExportTable, number: int) -> set[str]:
    """The files that entries after the checked one have named by now."""
    named: set[str] = set()
    for entry in _entries_after(table, number):
        if entry.removes:
            raise GoneError(f"entry {entry.number} of {table.job.name} removes files that are being verified")
        named.update(each.target for each in entry.renames)
    return named


def _entries_after(table: ExportTable, number: int) -> Iterator[Entry]:
    while (entry := table.ledger.read(number := number + 1)) is not None:
        yield entry


class _Owned:
    """Whose a file is, by its name."""

    def __init__(self, table: ExportTable, state: LedgerState) -> None:
        self._job = table.job.name
        self._lives = {table.space.of(topic): ids for topic, ids in state.lives().items()}
        listed = table.storage.list(CLAIMS)
        claims = {each.path.rsplit("/", 1)[-1]: table.storage.read(each.path).decode() for each in listed}
        self._other_jobs = set(claims.values()) - {self._job}
        self._other_spaces = {space for space, job in claims.items() if job != self._job}

    def is_ours(self, path: str) -> bool:
        parsed = parse_final_name(path)
        ours = is_own_output(path, self._job) or (parsed is not None and parsed.space in self._lives)
        return ours and type_and_day(path) is not None

    def is_others(self, path: str) -> bool:
        parsed = parse_final_name(path)
        if parsed is not None:
            return parsed.space in self._other_spaces
        return any(is_own_output(path, job) for job in self._other_jobs)

    def file(self, now: str, final: str) -> DataFile:
        """A file where it is or will be, as its name describes it; that of a compacted one tells no partition."""
        moves_to = final if now != final else None
        if (parsed := parse_final_name(final)) is None:
            return DataFile(now, None, moves_to=moves_to)
        ids = self._lives.get(parsed.space, [])
        topic_id = ids[parsed.life - 1] if 1 <= parsed.life <= len(ids) else None
        return DataFile(now, None, topic_id=topic_id, number=parsed.partition, moves_to=moves_to)


def _waiting(files: Sequence[DataFile]) -> Iterator[str]:
    if files:
        rows = sum(each.rows or 0 for each in files)
        yield f"{rows} rows in {len(files)} files wait to be moved to their place: counted where they are staged"
