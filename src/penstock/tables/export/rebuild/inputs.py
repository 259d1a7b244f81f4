"""What the data files of a job prove about its positions when the ledger is lost (RULES L6).

A batch is believed only if it is whole: of every slice that left files, each task's piece is there with as many files
of each type as the task counted. A type of which a slice has no file at all has to be read again from before it, or
caught up with. A piece without any file, and offsets between slices, are an ambiguity: files may be lost.

A replayed file proves no slice, only that its type was beyond its rows. If the quarantine does not know the last run
that the footers name, the rows of that run are in it as well, and the new ledger orders their removal (RULES Q2).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import msgspec

from penstock.flow.route.type_files import REPLAYED
from penstock.flow.write.offset_ranges import Ranges, count_of, offsets_of, ranges_of
from penstock.lake.delta.table import Table
from penstock.logs.log import Partition
from penstock.tables.export.files.data_files import VERSION, Facts
from penstock.tables.export.ledger.entry import ReplayRecord, WrittenRecord
from penstock.tables.export.ledger.names import day_folder, parse_final_name
from penstock.tables.export.old_proof.offsets.scan_passes import merged_ranges
from penstock.tables.quarantine.replayed import run_number
from penstock.tables.quarantine.rows import own_files, own_rows, where

FILES_SHOWN_MAX = 5

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ambiguity:
    """Why the ledger is not rebuilt: something that the files do not prove."""

    reason: str
    partition: str = ""
    offsets: Range | None = None
    """Half-open."""
    files: tuple[str, ...] = ()


class Extent(msgspec.Struct, frozen=True):
    """The files that a task wrote of a type, with the offsets of the first and the last row in them."""

    files: int
    first: int
    last: int


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True, rename={"number": "partition"}):
    """A file with rows of a type, by its footer; they may lie in a compacted file by now."""

    path: str
    topic: str
    topic_id: str
    number: int
    type: str
    day: str
    rows: int
    size_bytes: int

    @property
    def partition(self) -> Partition:
        return Partition(self.topic, self.topic_id, self.number)


class FileRecord(WrittenFile, frozen=True, kw_only=True, rename={"number": "partition", "start": "from"}):
    """A file that a batch wrote."""

    life: int
    batch: str
    slice: Range
    piece: Range
    pieces: int
    first: int
    last: int
    main: bool
    start: int
    """From which offset on the slice took records of the type."""
    types: Mapping[str, Extent] | None = None
    """What its task wrote of each type in this piece; None if the file was closed before that was known."""


class ReplayedFile(WrittenFile, frozen=True, kw_only=True, rename={"number": "partition"}):
    """A file that a replay run wrote."""

    run: int
    offsets: Ranges


@dataclass(frozen=True, slots=True)
class TypeProof:
    """What the files prove of a type in a partition."""

    position: int
    """Where the last slice ends in which it has rows, or its last replayed row: it may have lagged from there on."""
    main: tuple[FileRecord, ...] = ()
    caught_up: tuple[FileRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionProof:
    """What the files prove of a partition."""

    partition: Partition
    life: int
    origin: int
    position: int
    types: Mapping[str, TypeProof] = field(default_factory=dict)


def file_record(facts: Facts, path: str, rows: int, size_bytes: int) -> FileRecord | ReplayedFile | Ambiguity:
    """What one footer tells about the file that a batch or a replay wrote under `path`."""
    name, replayed = parse_final_name(path), facts.get("kind") == REPLAYED
    if facts.get("v") != VERSION or ("kind" in facts and not replayed) or (name is None) != replayed:
        return Ambiguity("its footer does not tell which batch wrote it", files=(path,))
    told = {**facts, "path": path, "life": name.life if name else 1, "rows": rows, "size_bytes": size_bytes}
    try:
        found = msgspec.convert(told, ReplayedFile) if name is None else msgspec.convert(told, FileRecord)
    except msgspec.ValidationError as error:
        return Ambiguity(f"its footer cannot be read: {error}", files=(path,))
    if isinstance(found, ReplayedFile):
        agree, offsets = count_of(found.offsets) == rows, None
    else:
        agree, offsets = (
            name is not None and (found.number, found.last) == (name.partition, name.last_offset),
            found.slice,
        )
    if not agree or path.rpartition("/")[0] != day_folder(found.type, found.day):
        return Ambiguity("its name and its footer disagree", str(found.partition), offsets, (path,))
    return found


def prove(
    records: Iterable[FileRecord], replayed: Sequence[ReplayedFile], types: Iterable[str]
) -> tuple[list[PartitionProof], list[Ambiguity]]:
    """What the files prove, partition by partition, and everything that they leave open."""
    by_partition: dict[Partition, list[FileRecord]] = defaultdict(list)
    for each in records:
        by_partition[each.partition].append(each)
    ambiguities: list[Ambiguity] = []
    proofs = []
    names = sorted({*types, *(each.type for found in (*by_partition.values(), replayed) for each in found)})
    for partition, found in sorted(by_partition.items()):
        ambiguities += _ambiguities(partition, found)
        proofs.append(_proof(partition, found, [each for each in replayed if each.partition == partition], names))
    ambiguities += _replay_ambiguities(replayed, {each.partition: each.position for each in proofs})
    return sorted(proofs, key=lambda each: (each.partition.topic, each.life, each.partition.number)), ambiguities


def _proof(
    partition: Partition, found: Sequence[FileRecord], replayed: Sequence[ReplayedFile], names: Iterable[str]
) -> PartitionProof:
    origin = min(each.slice[0] for each in found)
    types = {}
    for name in names:
        mine = [each for each in found if each.type == name]
        beyond = [each.offsets[-1][1] for each in replayed if each.type == name]
        types[name] = TypeProof(
            max([origin, *(each.slice[1] for each in mine), *beyond]),
            tuple(each for each in mine if each.main),
            tuple(each for each in mine if not each.main),
        )
    return PartitionProof(partition, found[0].life, origin, max(each.slice[1] for each in found), types)


def _ambiguities(partition: Partition, found: Sequence[FileRecord]) -> Iterator[Ambiguity]:
    name = str(partition)
    yield from _twice(name, found)
    if len({each.life for each in found}) > 1:
        yield Ambiguity("its files are named as of several lives of the topic", name, None, _shown(found))
    slices: dict[tuple[str, Range, bool], list[FileRecord]] = defaultdict(list)
    for each in found:
        slices[each.batch, each.slice, each.main].append(each)
    for (_, place, _), files in slices.items():
        yield from _not_whole(name, place, files, found)
    yield from _not_touching(name, slices)
    for kind in sorted({each.type for each in found}):
        yield from _overlapping_rows(name, [each for each in found if each.type == kind])


def _twice(name: str, found: Sequence[FileRecord]) -> Iterator[Ambiguity]:
    seen: set[str] = set()
    for each in found:
        if each.path in seen:
            yield Ambiguity("its rows are there twice, a compaction was cut short", name, each.slice, (each.path,))
        seen.add(each.path)


def _not_whole(
    name: str, place: Range, files: Sequence[FileRecord], found: Sequence[FileRecord]
) -> Iterator[Ambiguity]:
    """Whether all files are there that the slice was written to; `found` are those of the whole partition."""
    landed = {each.type for each in files}
    pieces: dict[Range, list[FileRecord]] = defaultdict(list)
    for each in files:
        pieces[each.piece].append(each)
    for piece, mine in sorted(pieces.items()):
        told = next((each.types for each in mine if each.types is not None), None)
        if told is None:
            yield Ambiguity("no file tells how many its task wrote", name, piece, _shown(mine))
            continue
        counts = Counter(each.type for each in mine)
        for kind in sorted({*told, *counts}):
            wrote = told.get(kind, Extent(0, 0, 0))
            if kind in landed and counts[kind] != wrote.files:
                reason = f"{counts[kind]} files of type {kind} are there, and its task wrote {wrote.files}"
                yield Ambiguity(reason, name, piece, _shown(mine))
            if kind not in landed and not _is_read_again(kind, place, wrote, found):
                reason = (
                    f"its task wrote {wrote.files} files of type {kind}, none is there and nothing caught up with it"
                )
                yield Ambiguity(reason, name, piece, _shown(mine))
    spans = merged_ranges(pieces)
    # The first piece begins after the start of the slice where the log had lost the offsets before it.
    touching = len(spans) == 1 and place[0] <= spans[0][0] and spans[0][1] == place[1]
    if {each.pieces for each in files} != {len(pieces)} or not touching:
        yield Ambiguity("a part of the slice left no file", name, place, _shown(files))


def _is_read_again(kind: str, place: Range, wrote: Extent, found: Sequence[FileRecord]) -> bool:
    """Whether what a slice had of a type and did not land was caught up with, or will be."""
    mine = [each for each in found if each.type == kind]
    if all(each.slice[1] <= place[0] for each in mine):
        return True
    caught_up = merged_ranges((each.start, each.slice[1]) for each in mine if not each.main)
    return any(start <= wrote.first and wrote.last < end for start, end in caught_up)


def _not_touching(name: str, slices: Iterable[tuple[str, Range, bool]]) -> Iterator[Ambiguity]:
    """Slices of the partition itself never overlap; a catch-up reads again what they had left."""
    known = list(slices)
    for before, after in pairwise(sorted(place for _, place, main in known if main)):
        if after[0] < before[1]:
            yield Ambiguity("two slices overlap", name, (after[0], min(before[1], after[1])))
    for before, after in pairwise(merged_ranges(place for _, place, _ in known)):
        yield Ambiguity("no file tells of these offsets", name, (before[1], after[0]))


def _overlapping_rows(name: str, files: Sequence[FileRecord]) -> Iterator[Ambiguity]:
    """A record is in one batch: the rows of a type in two batches do not mix."""
    batches: dict[str, list[FileRecord]] = defaultdict(list)
    for each in files:
        batches[each.batch].append(each)
    last: FileRecord | None = None
    for of in sorted(batches.values(), key=lambda each: min(one.first for one in each)):
        first = min(of, key=lambda each: each.first)
        if last is not None and first.first <= last.last:
            reason = f"two batches wrote rows of {first.type} here"
            yield Ambiguity(reason, name, (first.first, last.last + 1), (last.path, first.path))
        last = max([*of, *([last] if last else [])], key=lambda each: each.last)


def _shown(files: Sequence[FileRecord]) -> tuple[str, ...]:
    return tuple(each.path for each in files[:FILES_SHOWN_MAX])


def _replay_ambiguities(found: Iterable[ReplayedFile], positions: Mapping[Partition, int]) -> Iterator[Ambiguity]:
    """Rows that no slice is proved to have passed: read on from there, the log would give them a second time."""
    seen: dict[tuple[Partition, str], set[int]] = {}
    for each in found:
        first, last = each.offsets[0][0], each.offsets[-1][1] - 1
        if last >= positions.get(each.partition, 0):
            reason = "it holds replayed rows beyond the last slice that left a file"
            yield Ambiguity(reason, str(each.partition), (first, last + 1), (each.path,))
        offsets = set(offsets_of(each.offsets))
        known = seen.setdefault((each.partition, each.type), set())
        if known & offsets:
            reason = "its rows are there twice, a compaction was cut short"
            yield Ambiguity(reason, str(each.partition), (first, last + 1), (each.path,))
        known |= offsets


def bad_counts(
    quarantine: Table | None, proofs: Sequence[PartitionProof], found: Sequence[ReplayedFile]
) -> dict[Partition, int]:
    """How many records of each partition were bad: those in quarantine, and those that replays took out of it."""
    offsets: dict[Partition, set[int]] = {each.partition: set() for each in proofs}
    for each in found:
        offsets.setdefault(each.partition, set()).update(offsets_of(each.offsets))
    columns = ["topic_id", "partition", "offset"]
    files = [] if quarantine is None else [own_rows(quarantine, file, columns) for file in own_files(quarantine)]
    for rows in chain.from_iterable(files):
        for partition, known in offsets.items():
            here = where(rows, topic_id=partition.topic_id, partition=partition.number)
            known.update(rows.filter(here).column("offset").to_pylist())
    return {
        each.partition: sum(each.origin <= offset < each.position for offset in offsets[each.partition])
        for each in proofs
    }


def replay_record(quarantine: Table | None, found: Sequence[ReplayedFile]) -> ReplayRecord | None:
    """All runs as one, under the number of the last; None if there never was one."""
    last = max([0 if quarantine is None else run_number(quarantine), *(each.run for each in found)])
    if not last:
        return None
    offsets: dict[Partition, list[int]] = defaultdict(list)
    for each in found:
        offsets[each.partition] += offsets_of(each.offsets)
    written = {name: written_of(each for each in found if each.type == name) for name in {each.type for each in found}}
    return ReplayRecord(last, tuple((partition, ranges_of(each)) for partition, each in offsets.items()), written)


def written_of(files: Iterable[WrittenFile]) -> WrittenRecord:
    """What the files hold together."""
    rows, count, size_bytes = 0, 0, 0
    days: Counter[str] = Counter()
    for each in files:
        rows, count, size_bytes = rows + each.rows, count + 1, size_bytes + each.size_bytes
        days[each.day] += each.rows
    return WrittenRecord(rows, count, size_bytes, dict(days))
