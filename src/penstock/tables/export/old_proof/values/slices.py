"""Values compared slice by slice, where rows do not tell their offsets: the same rows, in whatever order.

The name of a staged file tells its slice; so all rows of a slice are compared with all of its records, by the sum of
their digests. What compaction or a replay took out of slices is compared as one: all such files with all such slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.flow.write.names import parse_staged_name
from penstock.logs.log import Partition, SliceShrankError
from penstock.proof.findings import ViolationKind, violation_at
from penstock.tables.export.old_proof.invariants import Span
from penstock.tables.export.old_proof.values.digests import Digests
from penstock.tables.export.old_proof.values.files import ValueFile, columns_of, read_values
from penstock.tables.export.old_proof.values.rows import Compared, PlacedRows, Rewritten, ValueSources

SUMS = 2**64

Place = tuple[Partition, int, int]
"""A partition and the offsets `[lo, hi)` of it that were read."""


@dataclass(slots=True)
class Unit:
    """Files and the offsets that their rows must be made of."""

    files: list[ValueFile] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    @property
    def offsets(self) -> int:
        return sum(hi - lo for _, lo, hi in self.places)


@dataclass(frozen=True, slots=True)
class Cut:
    """The table cut into what can be compared by itself: slices whose rows are all in their own files, and the rest."""

    slices: tuple[Unit, ...]
    rest: Unit
    rest_is_mixed: bool
    """Whether files of the rest may hold rows of any slice."""


def cut_by_slice(
    files: Iterable[ValueFile], spans: Iterable[tuple[Partition, Span]], replayed: frozenset[Partition]
) -> Cut:
    """Find the files of each span; a span whose quarantined records may have been replayed is of the rest."""
    named: dict[tuple[str, int, int, int], list[ValueFile]] = {}
    rest, mixed = Unit(), False
    for file in files:
        staged = parse_staged_name(file.file.path)
        if staged is None:
            rest.files.append(file)
            mixed = True
        else:
            named.setdefault((staged.topic_id, staged.partition, staged.start, staged.end), []).append(file)
    slices: list[Unit] = []
    for partition, span in spans:
        mine = named.pop((partition.topic_id, partition.number, span.lo, span.hi), [])
        place = (partition, span.read_from, span.hi)
        whole = sum(each.file.rows or 0 for each in mine) == span.totals.written
        if whole and not (partition in replayed and span.totals.quarantined):
            slices.append(Unit(mine, [place]))
        else:
            rest.files += mine
            rest.places.append(place)
    # Of slices that history has forgotten; those of another life or job are nobody's to compare.
    mine_ids = {(partition.topic_id, partition.number) for partition, _, _ in rest.places}
    for (topic_id, number, _, _), found in named.items():
        if (topic_id, number) in mine_ids:
            rest.files += found
    return Cut(tuple(slices), rest, mixed)


def compare_unit(
    sources: ValueSources, unit: Unit, quarantined: Mapping[Partition, PlacedRows], so_far: Compared
) -> None:
    """Compare the rows of a unit with its records."""
    names = _common([columns_of(each) for each in unit.files])
    rows, total = 0, 0
    for file in unit.files:
        for batch in read_values(file, None):
            digests = batch.digests(names)
            rows, total = rows + len(digests), (total + _sum(digests)) % SUMS
    wanted_rows, wanted = 0, 0
    for partition, lo, hi in unit.places:
        ranges = ((lo, hi),)
        written = Rewritten(sources.log, sources.rows.rewriter, partition, quarantined.get(partition, PlacedRows()))
        try:
            for batch in written.batches(ranges, None):
                digests = batch.digests(names or tuple(batch.columns))
                wanted_rows, wanted = wanted_rows + len(digests), (wanted + _sum(digests)) % SUMS
        except SliceShrankError:
            so_far.gone.add(partition)
            return
        so_far.records += written.records
        so_far.note(partition, written.altered(ranges, sources.exact[partition.topic]), ViolationKind.ALTERED)
    so_far.rows += rows
    if (rows, total) != (wanted_rows, wanted):
        so_far.altered += 1
        so_far.violations += [
            violation_at(partition, lo, ViolationKind.ALTERED, hi) for partition, lo, hi in unit.places if hi > lo
        ][:1]


def _sum(digests: Digests) -> int:
    return int(np.sum(digests, dtype=np.uint64))


def _common(column_sets: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    if not column_sets:
        return ()
    return tuple(name for name in column_sets[0] if all(name in each for each in column_sets))
