"""Compaction of a routed job: the small files of a closed day become large ones, across Kafka partitions (RULES L7).

An entry removes the old files first and then gives the staged output its final name: a plain reader may miss rows for a
moment and never sees one twice. Whoever comes next finishes an entry that its writer did not live to finish.

A file is compacted only when its staged source is gone. Otherwise a process that slept over its rename would find the
source there and the target free again, and would bring the removed file back. A source is there before its file: so the
files are listed first, and a source that is not there afterwards is gone for good. Where a store has no rename the
source stays after every commit: `vacuum.judge` says when it may go. The copy itself has to be as old, because a second
one that began before the source went may still be under way.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import InvariantError
from penstock.flow.write.names import StagedName, compacted_name, parse_staged_name
from penstock.lake.delta.compact import CompactReport as TableCompactReport
from penstock.lake.storage import Entry, NotFoundError
from penstock.tables.export.days.days import MILLIS_PER_SECOND, is_complete
from penstock.tables.export.files.data_files import (
    DataFile,
    Footer,
    compacted_facts,
    files_of_type,
    read_footers,
    replaced_facts,
)
from penstock.tables.export.files.merge import MergeOptions, Output, merge_files, unified
from penstock.tables.export.ledger.entry import EntryKind
from penstock.tables.export.ledger.names import compacted_final_name, day_folder
from penstock.tables.export.ledger.state import LedgerState, Rename
from penstock.tables.export.table import Draft, ExportTable
from penstock.tables.export.vacuum import facts_of, judge_staged

ENTRIES_TO_LAND_MAX = 1000
"""How many entries of others an output outlives unnamed; vacuum may take it after them, or once it retires it."""
FILES_PER_OUTPUT_MAX = 1000
"""Originals whose footers an output carries: they make its own footer longer."""
FILES_PER_ENTRY_MAX = 1000
BYTES_PER_ENTRY_MAX = 1024**3
"""Both bound how long readers may miss rows; an entry passes them by one group at most."""

Progress = Callable[[int, int], None]
"""Hears how many days of types are done, of how many."""


@dataclass(frozen=True, slots=True)
class CompactReport(TableCompactReport):
    """What a compaction did; groups whose folder takes no files are `dropped` too."""

    waiting: int = 0
    """Files whose staged source is still there, or was until a short while ago."""
    unfinished: int = 0
    """Outputs that the ledger holds and that could not be put in their place yet: run it again."""

    @property
    def remarks(self) -> tuple[str, ...]:
        waiting = (f"{self.waiting} files wait until their staged sources are gone",) if self.waiting else ()
        unfinished = f"{self.unfinished} new files are not in their place yet: run it again"
        return (*waiting, unfinished) if self.unfinished else waiting


@dataclass(frozen=True, slots=True)
class Input:
    """A small file and what its footer tells."""

    file: DataFile
    footer: Footer
    originals: list[dict[str, Any]] = field(compare=False)

    @property
    def order(self) -> tuple[str, int, int, int, str]:
        """Partition by partition, in the order of offsets; of a compacted file its first original decides."""
        first = self.originals[0]
        life = self.file.name.life if self.file.name is not None else 1
        return first.get("topic", ""), first.get("partition", 0), life, first.get("first", 0), self.file.path


@dataclass(frozen=True, slots=True)
class Merged:
    """A group of inputs and the file that holds their rows, staged and not yet named by an entry."""

    inputs: tuple[Input, ...]
    output: Output


def compact(
    table: ExportTable,
    target_bytes: int | None = None,
    *,
    all_days: bool = False,
    progress: Progress | None = None,
) -> CompactReport:
    """Merge files below `target_bytes` of every complete day; `all_days`: of all days but a type's newest."""
    limit = table.export.compact_bytes if target_bytes is None else target_bytes
    table.refuse_older_ledger()
    table.complete()
    state = table.state()
    spaces = {table.space.of(each.topic) for each in state.partitions}
    days = [each for name in sorted(state.types) for each in _closed_days(table, state, name, spaces, all_days)]
    staged = _Staged(table)
    report = CompactReport()
    for number, files in enumerate(days):
        report += _compact_day(table, [each for each in files if each.size_bytes < limit], limit, staged)
        if progress is not None:
            progress(number + 1, len(days))
    return report


class _Staged:
    """What lies in the staged folder once everything is gone that may go."""

    def __init__(self, table: ExportTable) -> None:
        self._table = table
        entries = {each.path: each for each in table.storage.list(table.places.staged)}
        self._facts = facts_of(table, table.state())
        dead, _ = judge_staged(entries.values(), self._facts)
        for entry, _ in dead:
            table.storage.delete(entry.path)
            del entries[entry.path]
        self._entries: dict[str, Entry] = entries
        self._names: dict[str, list[StagedName]] = {}
        for path in entries:
            if (name := parse_staged_name(path)) is not None:
                self._names.setdefault(path.rsplit("/", 2)[-2], []).append(name)

    def may_bring_back(self, file: DataFile) -> bool:
        """Whether a copy of it may be under way or still begin: a source in whose slice its last offset lies."""
        final = file.name
        age_seconds = self._facts.now - file.modified_at.timestamp()
        if self._facts.keeps_sources and age_seconds < self._facts.stage_age_seconds:
            return True
        return final is not None and any(
            each.partition == final.partition and each.start <= final.last_offset < each.end
            for each in self._names.get(file.type, ())
        )

    def holds(self, source: str) -> bool:
        """Whether the staged source of a compacted file has to stay; one that may go is deleted."""
        entry = self._entries.get(source)
        if entry is None:
            return False
        if source in self._facts.ordered or (self._facts.keeps_sources and self._facts.is_young(entry)):
            return True
        # Its output lies under the final name, so its entry is complete, and nobody has to find it any more.
        self._table.storage.delete(source)
        del self._entries[source]
        return False


def _closed_days(
    table: ExportTable, state: LedgerState, name: str, spaces: Collection[str], all_days: bool
) -> Iterator[list[DataFile]]:
    """The files of each day of a type that may be compacted."""
    days: dict[str, list[DataFile]] = {}
    for file in files_of_type(table.storage, name, table.job.name, spaces):
        days.setdefault(file.day, []).append(file)
    after = table.days.complete_after_seconds
    now_ms = int(table.environment.now() * MILLIS_PER_SECOND)
    for day in sorted(days):
        if (all_days and day != max(days)) or is_complete(state, name, day, after, now_ms):
            yield days[day]


def _compact_day(table: ExportTable, small: Sequence[DataFile], limit: int, staged: _Staged) -> CompactReport:
    free = [each for each in small if not staged.may_bring_back(each)]
    if len(free) < 2:
        return CompactReport(waiting=len(small) - len(free))
    inputs = list(_inputs(table, free))
    ready = [each for each in inputs if each.footer.source is None or not staged.holds(each.footer.source)]
    report = CompactReport(waiting=len(small) - len(free) + len(inputs) - len(ready))
    groups = list(group_inputs(ready, limit))
    if groups and table.probe(free[0].type, [free[0].day]) is not None:
        return report + CompactReport(dropped=len(groups))
    for portion in _portions(groups):
        report += _compact_groups(table, portion)
    return report


def _inputs(table: ExportTable, files: Sequence[DataFile]) -> Iterator[Input]:
    """The files with their footers; one that is gone since the listing was compacted by another process."""
    footers = read_footers(table.storage, [each.path for each in files])
    for file, footer in zip(files, footers, strict=True):
        if isinstance(footer, InvariantError):
            raise footer
        if footer is not None:
            yield Input(file, footer, replaced_facts(file.path, file.size_bytes, footer))


def group_inputs(inputs: Iterable[Input], limit: int) -> Iterator[tuple[Input, ...]]:
    """Inputs in the order of their rows, together until they reach the size that is aimed at."""
    pending: list[Input] = []
    for each in sorted(inputs, key=lambda one: one.order):
        originals = sum(len(one.originals) for one in pending) + len(each.originals)
        if pending and (sum(one.file.size_bytes for one in pending) >= limit or originals > FILES_PER_OUTPUT_MAX):
            if len(pending) > 1:
                yield tuple(pending)
            pending = []
        pending.append(each)
    if len(pending) > 1:
        yield tuple(pending)


def _portions(groups: Iterable[tuple[Input, ...]]) -> Iterator[list[tuple[Input, ...]]]:
    """The groups of a day that share an entry."""
    pending: list[tuple[Input, ...]] = []
    for group in groups:
        pending.append(group)
        files = [each.file for one in pending for each in one]
        if len(files) >= FILES_PER_ENTRY_MAX or sum(each.size_bytes for each in files) >= BYTES_PER_ENTRY_MAX:
            yield pending
            pending = []
    if pending:
        yield pending


def _compact_groups(table: ExportTable, groups: Sequence[tuple[Input, ...]]) -> CompactReport:
    entry_max = table.version + ENTRIES_TO_LAND_MAX
    merged = [done for each in groups if (done := _merge(table, each, entry_max)) is not None]
    table.environment.reach("compact_staged")
    landed = _land(table, merged, entry_max)
    name = groups[0][0].file.type
    return CompactReport(
        files_removed=sum(len(each.inputs) for each in landed),
        files_added=len(landed),
        rows=sum(each.output.rows for each in landed),
        size_bytes_before=sum(one.file.size_bytes for each in landed for one in each.inputs),
        size_bytes_after=sum(each.output.size_bytes for each in landed),
        commits=1 if landed else 0,
        dropped=len(groups) - len(landed),
        unfinished=len(landed) if landed and name in table.failing_types() else 0,
    )


def _merge(table: ExportTable, inputs: tuple[Input, ...], entry_max: int) -> Merged | None:
    """Write the rows of a group to a staged file; None if another process took a file away meanwhile."""
    file = inputs[0].file
    target = f"{table.places.staged}/{file.type}/{compacted_name(entry_max, uuid.uuid4().hex)}"
    originals = [original for each in inputs for original in each.originals]
    try:
        output = merge_files(
            table.storage,
            [each.file.path for each in inputs],
            target,
            unified(each.footer.schema for each in inputs),
            compacted_facts(file.type, file.day, target, originals),
            MergeOptions(table.export.compression, table.job.limits.row_group_bytes_max),
        )
    except NotFoundError:
        return None
    rows = sum(each.footer.rows for each in inputs)
    if rows != output.rows:
        raise InvariantError(f"a compaction of {file.type}, day {file.day}, read {rows} rows and wrote {output.rows}")
    return Merged(inputs, output)


def _land(table: ExportTable, merged: Sequence[Merged], entry_max: int) -> list[Merged]:
    """Swap groups for their outputs, as far as their files are still there; those that landed come back."""
    alive: list[Merged] = []

    def decide(state: LedgerState) -> Draft | None:
        if not merged or state.number >= entry_max or state.retired >= entry_max:
            alive.clear()
            return None
        first = merged[0].inputs[0].file
        folder = day_folder(first.type, first.day)
        there = {each.path: each.size_bytes for each in table.storage.list(folder)}
        # A rival may have ordered a file to be removed and not have been able to: it is no longer the table's.
        going = frozenset(state.unfinished.removes)
        alive[:] = [each for each in merged if _is_alive(each, there, going)]
        if not alive:
            return None
        table.environment.reach("compact_checked")
        names = _free_names(table.job.name, state.number + 1, folder, there)
        return Draft(
            EntryKind.COMPACTION,
            removes=tuple(one.file.path for each in alive for one in each.inputs),
            renames=tuple(
                Rename(
                    each.output.path,
                    target,
                    first.type,
                    waits=True,
                    rows=each.output.rows,
                    size_bytes=each.output.size_bytes,
                )
                for each, target in zip(alive, names, strict=False)
            ),
        )

    if table.append(decide) is None:
        return []
    table.environment.reach("compact_committed")
    return alive


def _is_alive(merged: Merged, there: dict[str, int], going: Collection[str]) -> bool:
    return all(
        there.get(each.file.path) == each.file.size_bytes and each.file.path not in going for each in merged.inputs
    )


def _free_names(job: str, entry: int, folder: str, there: Collection[str]) -> Iterator[str]:
    """Final names of an entry's outputs; a ledger that was rebuilt may come to a number of the one before."""
    number = 0
    while True:
        path = f"{folder}/{compacted_final_name(job, entry, number)}"
        if path not in there:
            yield path
        number += 1
