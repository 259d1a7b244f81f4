"""What replayed files and the quarantine tell when the ledger is lost (RULES L6, Q2).

A replayed file proves no slice, only that its type was beyond its rows. If the quarantine does not know the last run
that the footers name, the rows of that run are in it as well, and the new ledger orders their removal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.flow.write.offset_ranges import Ranges, count_of, offsets_of, ranges_of
from penstock.lake.delta.table import Table
from penstock.logs.log import Partition
from penstock.tables.export.files.data_files import Facts
from penstock.tables.export.ledger.entry import ReplayRecord, WrittenRecord
from penstock.tables.export.rebuild.inputs import VERSION, Ambiguity, PartitionProof, TypeProof, WrittenFile, read_facts
from penstock.tables.quarantine.replayed import run_number
from penstock.tables.quarantine.rows import own_files, own_rows, where


class ReplayedFile(WrittenFile, frozen=True, kw_only=True, rename={"number": "partition"}):
    """A file that a replay run wrote."""

    run: int
    offsets: Ranges


def replayed_file(facts: Facts, path: str, rows: int, size_bytes: int) -> ReplayedFile | Ambiguity:
    found = read_facts(ReplayedFile, facts, path=path, rows=rows, size_bytes=size_bytes)
    if isinstance(found, Ambiguity):
        return found
    stated = (facts.get("v"), count_of(found.offsets), f"{found.type}/day={found.day}")
    if stated != (VERSION, rows, path.rpartition("/")[0]):
        return Ambiguity("its footer and the file disagree", str(found.partition), files=(path,))
    return found


def replay_ambiguities(found: Iterable[ReplayedFile], proofs: Iterable[PartitionProof]) -> Iterator[Ambiguity]:
    """Rows that no slice is proved to have passed: read on from there, the log would give them a second time."""
    positions = {each.partition: each.position for each in proofs}
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


def with_replays(proofs: Iterable[PartitionProof], found: Sequence[ReplayedFile]) -> list[PartitionProof]:
    """The proofs with each type beyond its replayed rows."""
    return [replace(proof, types=_beyond(proof, found)) for proof in proofs]


def _beyond(proof: PartitionProof, found: Sequence[ReplayedFile]) -> dict[str, TypeProof]:
    types = dict(proof.types)
    for each in found:
        if each.partition == proof.partition:
            before = types.get(each.type, TypeProof(proof.origin))
            types[each.type] = replace(before, position=max(before.position, each.offsets[-1][1]))
    return types


def bad_counts(
    quarantine: Table | None, proofs: Iterable[PartitionProof], found: Sequence[ReplayedFile]
) -> dict[Partition, int]:
    """How many records of each partition were bad: those in quarantine, and those that replays took out of it."""
    offsets: dict[Partition, set[int]] = {each.partition: set() for each in proofs}
    for each in found:
        offsets.setdefault(each.partition, set()).update(offsets_of(each.offsets))
    for rows in _places_in(quarantine):
        for partition, known in offsets.items():
            here = where(rows, topic_id=partition.topic_id, partition=partition.number)
            known.update(rows.filter(here).column("offset").to_pylist())
    ends = {each.partition: (each.origin, each.position) for each in proofs}
    return {
        partition: sum(ends[partition][0] <= each < ends[partition][1] for each in offsets[partition])
        for partition in ends
    }


def _places_in(quarantine: Table | None) -> Iterator[pa.Table]:
    if quarantine is not None:
        for file in own_files(quarantine):
            yield from own_rows(quarantine, file, ["topic_id", "partition", "offset"])


def replay_record(quarantine: Table | None, found: Sequence[ReplayedFile]) -> ReplayRecord | None:
    """All runs as one, under the number of the last; None if there never was one."""
    last = max([0 if quarantine is None else run_number(quarantine), *(each.run for each in found)])
    if not last:
        return None
    offsets: dict[Partition, list[int]] = {}
    written: dict[str, WrittenRecord] = {}
    for each in found:
        offsets.setdefault(each.partition, []).extend(offsets_of(each.offsets))
        mine = WrittenRecord(each.rows, 1, each.size_bytes, {each.day: each.rows})
        written[each.type] = written.get(each.type, WrittenRecord(0, 0, 0)) + mine
    return ReplayRecord(last, tuple((partition, ranges_of(each)) for partition, each in offsets.items()), written)
