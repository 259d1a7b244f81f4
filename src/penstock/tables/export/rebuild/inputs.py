"""What the data files of a job prove about its positions when the ledger is lost (RULES L6).

A batch is believed only if it is whole: of every slice that left files, each task's piece is there with as many files
of each type as the task counted. A type of which a slice has no file at all has to be read again from before it, or
caught up with. A piece without any file, and offsets between slices, are an ambiguity: files may be lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import msgspec

from penstock.logs.log import Partition
from penstock.proof.offsets.scan_passes import merged_ranges
from penstock.tables.export.files.data_files import Facts
from penstock.tables.export.ledger.names import parse_final_name

FILES_SHOWN_MAX = 5
VERSION = 1

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


F = TypeVar("F", bound=WrittenFile)


def read_facts(kind: type[F], facts: Facts, **told: object) -> F | Ambiguity:
    """What a footer tells, with what is known of its file from elsewhere."""
    try:
        return msgspec.convert({**facts, **told}, kind)
    except msgspec.ValidationError as error:
        return Ambiguity(f"its footer cannot be read: {error}", files=(str(told["path"]),))


@dataclass(frozen=True, slots=True)
class TypeProof:
    """What the files prove of a type in a partition."""

    position: int
    """Where the last slice ends in which it has rows: it may have lagged from there on."""
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


def file_record(facts: Facts, path: str, rows: int, size_bytes: int) -> FileRecord | Ambiguity:
    """What one footer tells about the file that was written under `path`."""
    name = parse_final_name(path)
    if not facts or facts.get("v") != VERSION or "kind" in facts or name is None:
        return Ambiguity("its footer does not tell which batch wrote it", files=(path,))
    found = read_facts(FileRecord, facts, path=path, life=name.life, rows=rows, size_bytes=size_bytes)
    if isinstance(found, Ambiguity):
        return found
    stated = (found.number, found.last, f"{found.type}/day={found.day}")
    if stated != (name.partition, name.last_offset, path.rpartition("/")[0]):
        return Ambiguity("its name and its footer disagree", str(found.partition), found.slice, (path,))
    return found


def prove(records: Iterable[FileRecord], types: Iterable[str]) -> tuple[list[PartitionProof], list[Ambiguity]]:
    """What the files prove, partition by partition, and everything that they leave open."""
    by_partition: dict[Partition, list[FileRecord]] = defaultdict(list)
    for each in records:
        by_partition[each.partition].append(each)
    ambiguities: list[Ambiguity] = []
    proofs = []
    names = sorted({*types, *(each.type for found in by_partition.values() for each in found)})
    for partition in sorted(by_partition):
        found = by_partition[partition]
        ambiguities += _ambiguities(partition, found)
        proofs.append(_proof(partition, found, names))
    return sorted(proofs, key=lambda each: (each.partition.topic, each.life, each.partition.number)), ambiguities


def _proof(partition: Partition, found: Sequence[FileRecord], names: Iterable[str]) -> PartitionProof:
    origin = min(each.slice[0] for each in found)
    types = {}
    for name in names:
        mine = [each for each in found if each.type == name]
        types[name] = TypeProof(
            max((each.slice[1] for each in mine), default=origin),
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
