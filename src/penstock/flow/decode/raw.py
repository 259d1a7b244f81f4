"""The decoder that looks at nothing: the payload of a record is its only column."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.flow.decode.outcome import gathered, open_records
from penstock.flow.rows import Decoded
from penstock.job.spec import TombstonePolicy, Wrapping

RAW_SCHEMA = pa.schema([("value", pa.binary())])


@dataclass(frozen=True, slots=True)
class RawDecoder:
    schema: pa.Schema
    wrapping: Wrapping
    tombstone: TombstonePolicy

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        records = open_records(batch, self.wrapping, self.tombstone)
        columns = pa.RecordBatch.from_arrays([records.values], schema=self.schema)
        return gathered(batch, columns, records.rows, records.errors, records, {})
