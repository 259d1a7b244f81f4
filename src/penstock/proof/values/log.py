"""The log's side of a comparison of values: records written once more, and the bytes of those in quarantine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.logs.log import Log, Partition, Slice
from penstock.proof.offsets.owners import OriginColumns
from penstock.proof.values.digests import Digests, column_digests, row_digests
from penstock.proof.values.files import Offsets, Ranges, ValueBatch, read_values
from penstock.proof.values.rewriting import Rewriter

OFFSETS_PER_CHUNK_MAX = 100_000
"""So many offsets are written to the scratch folder at a time."""
RAW_NAMES = ("timestamp", "key", "value", "headers")
"""What of a quarantined record must be as it is in the log."""


@dataclass(slots=True)
class RawRecords:
    """The bytes of quarantined records, as digests."""

    wanted: Offsets
    offsets: list[Offsets] = field(default_factory=list)
    digests: list[Digests] = field(default_factory=list)

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keep the digests of wanted records; returns the others, which must be rows."""
        found = np.isin(batch.column("offset").to_numpy(), self.wanted)
        if not found.any():
            return batch
        mine = batch.filter(pa.array(found))
        self.offsets.append(mine.column("offset").to_numpy())
        self.digests.append(raw_digests(mine))
        return batch.filter(pa.array(~found))


def raw_digests(records: pa.RecordBatch) -> Digests:
    columns = {
        name: column_digests(_column(records, name).cast(QUARANTINE_SCHEMA.field(name).type)) for name in RAW_NAMES
    }
    return row_digests(columns, RAW_NAMES, np.uint64(0))


def _column(records: pa.RecordBatch, name: str) -> pa.Array:
    kind = QUARANTINE_SCHEMA.field(name).type
    return records.column(name) if name in records.schema.names else pa.nulls(records.num_rows, kind)


@dataclass(slots=True)
class Rewritten:
    """Rows as the job would write them again, a batch at a time, for ranges of one partition."""

    log: Log
    rewriter: Rewriter
    partition: Partition
    quarantined: RawRecords
    records: int = 0

    def batches(self, ranges: Ranges, origin: OriginColumns | None) -> Iterator[ValueBatch]:
        for lo, hi in ranges.bounds:
            for start in range(lo, hi, OFFSETS_PER_CHUNK_MAX):
                yield from self._chunk(start, min(hi, start + OFFSETS_PER_CHUNK_MAX), origin)

    def _chunk(self, lo: int, hi: int, origin: OriginColumns | None) -> Iterator[ValueBatch]:
        piece = Slice(self.partition, lo, hi, lo)
        with TemporaryDirectory(prefix="penstock-verify-", ignore_cleanup_errors=True) as folder:
            for file in list(self.rewriter.written(piece, self._living(lo, hi), Path(folder))):
                yield from read_values(file, origin)

    def _living(self, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
        for batch in self.log.records(self.partition, lo, hi):
            self.records += batch.num_rows
            rest = self.quarantined.take(batch)
            if rest.num_rows:
                yield rest


def joined(parts: Sequence[Offsets]) -> Offsets:
    return np.concatenate(parts) if parts else np.array([], dtype=np.int64)


def joined_digests(parts: Sequence[Digests]) -> Digests:
    return np.concatenate(parts) if parts else np.array([], dtype=np.uint64)
