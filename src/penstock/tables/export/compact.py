"""Compaction of an export: the small files of a closed day become large ones, across Kafka partitions (RULES L7).

An entry removes the old files and gives the staged outputs their names; whoever comes next finishes it. A file waits as
long as a process that slept could bring it back (docs/protocol.md, "Compaction and vacuum").
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.errors import InvariantError
from penstock.flow.write.names import StagedName, compacted_name, parse_staged_name
from penstock.lake.maintenance.compaction import (
    EVERYTHING,
    Effort,
    Group,
    Limit,
    Merged,
    Progress,
    group,
    portions,
    swap,
)
from penstock.lake.maintenance.leftovers import classify_all
from penstock.lake.maintenance.merge import OneFile, Source, merge_files, unified
from penstock.lake.maintenance.reports import CompactReport as TableCompactReport
from penstock.lake.storage import NotFoundError
from penstock.tables.export.files.data_files import (
    DAMAGED_FILE,
    DataFile,
    Footer,
    compacted_facts,
    own_files,
    read_footers,
    replaced_facts,
)
from penstock.tables.export.ledger.days import MILLIS_PER_SECOND, is_complete
from penstock.tables.export.ledger.entry import EntryKind
from penstock.tables.export.ledger.names import day_folder, output_name
from penstock.tables.export.ledger.state import LedgerState, Rename
from penstock.tables.export.table import Draft, ExportTable
from penstock.tables.export.vacuum import StagedFiles

ENTRIES_TO_LAND_MAX = 1000
"""How many entries of others an output outlives unnamed; vacuum may take it after them, or once it retires it."""
FILES_PER_OUTPUT_MAX = 1000
"""Originals whose footers an output carries: they make its own footer longer."""
FILES_PER_ENTRY_MAX = 1000
BYTES_PER_ENTRY_MAX = 1024**3
"""Both bound how long readers may miss rows; an entry passes them by one group at most."""


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
    def size_bytes(self) -> int:
        return self.file.size_bytes

    @property
    def order(self) -> tuple[str, int, int, int, str]:
        """Partition by partition, in the order of offsets; of a compacted file its first original decides."""
        first = self.originals[0]
        life = self.file.name.life if self.file.name is not None else 1
        return first.get("topic", ""), first.get("partition", 0), life, first.get("first", 0), self.file.path


def compact(
    table: ExportTable,
    target_bytes: int | None = None,
    *,
    all_days: bool = False,
    progress: Progress | None = None,
    effort: Effort = EVERYTHING,
) -> CompactReport:
    """Merge files below `target_bytes` of every complete day; `all_days`: of all days but a type's newest.

    `progress` hears how many days of types are done.
    """
    limit = table.export.compact_bytes if target_bytes is None else target_bytes
    table.refuse_older_ledger()
    table.complete()
    state = table.state()
    days = [each for name in sorted(state.types) for each in _closed_days(table, state, name, all_days)]
    staged = _Staged(table)
    report = CompactReport()
    for number, files in enumerate(days):
        small = [each for each in files if each.size_bytes < limit]
        report += _compact_day(table, small, limit, staged, effort.after(report.size_bytes_before))
        if progress is not None:
            progress(number + 1, len(days))
    return report


class _Staged(StagedFiles):
    """What lies in the staged folder once everything is gone that may go."""

    def __init__(self, table: ExportTable) -> None:
        self._storage = table.storage
        entries = {each.path: each for each in table.storage.list(table.places.staged)}
        super().__init__(table, table.state())
        found = classify_all(table.job.table.path, table.storage, entries.values(), self.classify)
        for entry, _ in found.dead:
            table.storage.delete(entry.path)
            del entries[entry.path]
        self._entries = entries
        self._names: dict[str, list[StagedName]] = {}
        for path in entries:
            if (name := parse_staged_name(path)) is not None:
                self._names.setdefault(path.rsplit("/", 2)[-2], []).append(name)

    def may_bring_back(self, file: DataFile) -> bool:
        """Whether a copy of it may be under way or still begin: a source in whose slice its last offset lies."""
        final = file.name
        if self.may_be_copied(file.modified_at):
            return True
        return final is not None and any(
            each.partition == final.partition and each.start <= final.last_offset < each.end
            for each in self._names.get(file.type, ())
        )

    def holds(self, source: str) -> bool:
        """Whether a staged source, that of a compacted or replayed file, has to stay; one that may go is deleted."""
        entry = self._entries.get(source)
        if entry is None:
            return False
        if source in self.ordered or self.may_be_copied(entry.modified_at):
            return True
        # Its output lies under the final name, so its entry is complete, and nobody has to find it any more.
        self._storage.delete(source)
        del self._entries[source]
        return False


def _closed_days(table: ExportTable, state: LedgerState, name: str, all_days: bool) -> Iterator[list[DataFile]]:
    """The files of each day of a type that may be compacted; other jobs may have theirs in the same folders."""
    days: dict[str, list[DataFile]] = {}
    spaces = {table.space.of(each.topic) for each in state.partitions}
    for file in own_files(table.storage, name, table.job.name, spaces.__contains__):
        days.setdefault(file.day, []).append(file)
    after = table.export.days.complete_after_seconds
    now_ms = int(table.environment.now() * MILLIS_PER_SECOND)
    for day in sorted(days):
        if (all_days and day != max(days)) or is_complete(state, name, day, after, now_ms):
            yield days[day]


def _compact_day(
    table: ExportTable, small: Sequence[DataFile], limit: int, staged: _Staged, effort: Effort
) -> CompactReport:
    small = [file for alike in effort.worthwhile(small) for file in alike]
    free = [each for each in small if not staged.may_bring_back(each)]
    if len(free) < 2:
        return CompactReport(waiting=len(small) - len(free))
    inputs = list(_inputs(table, free))
    ready = [each for each in inputs if not staged.holds(each.footer.facts.get("source", ""))]
    report = CompactReport(waiting=len(small) - len(free) + len(inputs) - len(ready))
    in_order = sorted(ready, key=lambda each: each.order)
    originals: Limit[Input] = Limit(lambda each: len(each.originals), FILES_PER_OUTPUT_MAX, firm=True)
    every = [one for alike in effort.worthwhile(in_order) for one in group(alike, limit, originals)]
    groups = effort.within(every)
    report += CompactReport(left=len(every) - len(groups))
    if groups and table.probe(free[0].type, [free[0].day]) is not None:
        return report + CompactReport(dropped=len(groups))
    for portion in portions(groups, BYTES_PER_ENTRY_MAX, Limit(lambda each: len(each.files), FILES_PER_ENTRY_MAX)):
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


def _compact_groups(table: ExportTable, groups: Sequence[Group[Input]]) -> CompactReport:
    entry_max = table.state().number + ENTRIES_TO_LAND_MAX
    landed = swap(
        groups,
        lambda each: _merge(table, each, entry_max),
        lambda merged: _land(table, merged, entry_max),
        table.environment.reach,
    )
    held_back = groups[0].files[0].file.type in table.failing_types()
    return replace(CompactReport.of(len(groups), landed), unfinished=len(landed) if held_back else 0)


def _merge(table: ExportTable, inputs: Group[Input], entry_max: int) -> Merged[Input] | None:
    """Write the rows of a group to a staged file; None if another process took a file away meanwhile."""
    file = inputs.files[0].file
    target = f"{table.places.staged}/{file.type}/{compacted_name(entry_max, uuid.uuid4().hex)}"
    originals = [original for each in inputs.files for original in each.originals]
    schema = unified(each.footer.schema for each in inputs.files)
    words = compacted_facts(file.type, file.day, target, originals)
    sink = OneFile(table.storage, target, schema, table.export.compression, table.job.limits.row_group_bytes_max, words)
    try:
        sources = [Source(each.file.path) for each in inputs.files]
        return Merged(inputs, merge_files(table.storage, sources, schema, sink, DAMAGED_FILE))
    except NotFoundError:
        return None


def _land(table: ExportTable, merged: Sequence[Merged[Input]], entry_max: int) -> Sequence[Merged[Input]]:
    """Swap groups for their outputs, as far as their files are still there; those that landed come back."""
    alive: list[Merged[Input]] = []
    first = merged[0].group.files[0].file
    folder = day_folder(first.type, first.day)

    def decide(state: LedgerState) -> Draft | None:
        if state.number >= entry_max or state.retired >= entry_max:
            return None
        there = {each.path: each.size_bytes for each in table.storage.list(folder)}
        # A rival may have ordered a file to be removed and not have been able to: it is no longer the table's.
        ours = {each for each in there.items() if each[0] not in state.unfinished.removes}
        alive[:] = [each for each in merged if ours >= {(one.file.path, one.size_bytes) for one in each.group.files}]
        if not alive:
            return None
        table.environment.reach("compact_checked")
        outputs = [file for each in alive for file in each.outputs]
        # A ledger that was rebuilt may come to a number of the one before: then some names are taken.
        names = (output_name("compacted", table.job.name, state.number + 1, each) for each in itertools.count())
        targets = (f"{folder}/{each}" for each in names if f"{folder}/{each}" not in there)
        return Draft(
            EntryKind.COMPACTION,
            removes=tuple(one.file.path for each in alive for one in each.group.files),
            renames=tuple(
                Rename(each.path, target, first.type, waits=True, rows=each.rows, size_bytes=each.size_bytes)
                for each, target in zip(outputs, targets, strict=False)
            ),
        )

    return alive if table.append(decide) is not None else ()
