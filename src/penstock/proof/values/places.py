"""Values compared record by record, where rows tell their partition and offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.logs.log import Log, Partition, SliceShrankError
from penstock.proof.findings import ViolationKind
from penstock.proof.values.digests import Digests
from penstock.proof.values.files import Offsets, Rewriter
from penstock.proof.values.rows import (
    RAW_NAMES,
    Compared,
    PlacedRows,
    RawRecords,
    Rewritten,
    ValueSide,
    Wanted,
    collect_rows,
    compare_raw,
    joined,
    joined_digests,
)


@dataclass(frozen=True, slots=True)
class PlacedValues:
    """Compares rows with records of the log, each with the record that it came from."""

    table: ValueSide
    quarantine: ValueSide
    log: Log
    rewriter: Rewriter
    exact: Mapping[str, bool]
    """Per topic, whether the log still has every record from its first offset on."""
    strict: bool = True
    """Whether every record that gives a row must have it in the table."""

    def compare(self, wanted: Wanted, so_far: Compared) -> None:
        """Compare the wanted offsets; memory is needed for their digests alone."""
        kinds: list[tuple[str, ...]] = []
        table, unplaced = collect_rows(self.table, wanted, kinds)
        # Each pass sees rows without a place again.
        so_far.unplaced = max(so_far.unplaced, unplaced)
        quarantine, _ = collect_rows(self.quarantine, wanted, [RAW_NAMES], raw=True)
        for partition, ranges in sorted(wanted.items()):
            bad = quarantine.get(partition, PlacedRows())
            raw = RawRecords(joined(bad.offsets))
            written = Rewritten(self.log, self.rewriter, partition, raw)
            offsets: list[Offsets] = []
            digests: list[list[Digests]] = [[] for _ in kinds]
            try:
                for batch in written.batches(ranges, self.table.origin):
                    for _, rows, found in batch.groups():
                        offsets.append(found)
                        for parts, names in zip(digests, kinds, strict=True):
                            there = [name for name in names if name in batch.columns]
                            parts.append(batch.digests(there)[rows])
            except SliceShrankError:
                so_far.gone.add(partition)
                continue
            so_far.records += written.records
            mine = table.get(partition, PlacedRows())
            self._compare_rows(partition, mine, joined(offsets), [joined_digests(each) for each in digests], so_far)
            exact = self.exact.get(partition.topic, False)
            so_far.note(partition, compare_raw(ranges, bad, raw, exact), ViolationKind.ALTERED)
            so_far.rows += len(joined(raw.offsets))

    def _compare_rows(
        self, partition: Partition, table: PlacedRows, offsets: Offsets, digests: Sequence[Digests], so_far: Compared
    ) -> None:
        """Compare the rows of one partition with those that the log gives."""
        order = np.argsort(offsets, kind="stable")
        offsets, digests = offsets[order], [each[order] for each in digests]
        rows, have, kinds = joined(table.offsets), joined_digests(table.digests), joined(table.kinds)
        at = np.minimum(np.searchsorted(offsets, rows), max(0, len(offsets) - 1))
        known = offsets[at] == rows if len(offsets) else np.zeros(len(rows), dtype=bool)
        should = np.zeros(len(rows), dtype=np.uint64)
        for kind, each in enumerate(digests):
            mine = known & (kinds == kind)
            should[mine] = each[at[mine]]
        exact = self.exact.get(partition.topic, False)
        wrong = (known & (should != have)) | (~known & exact)
        so_far.note(partition, rows[wrong], ViolationKind.ALTERED)
        so_far.rows += int(np.count_nonzero(known))
        if self.strict and not so_far.unplaced:
            so_far.note(partition, offsets[~np.isin(offsets, rows)], ViolationKind.MISSING)
