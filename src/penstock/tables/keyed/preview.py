"""The dry run of a keyed table: the rows of a batch by bucket, before they are merged into the table."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.stage import Stage
from penstock.flow.task import fused_stage
from penstock.job.spec import JobSpec, job_of
from penstock.logs.log import Batch
from penstock.staging.reports import Gathered
from penstock.storage import open_storage
from penstock.tables.keyed.files import files_by_bucket
from penstock.tables.keyed.layout import BUCKET, DELETE, HIDDEN, key_frame
from penstock.tables.keyed.merging.runs import keyed_flow, parts_by_bucket, read_part
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.preview import Output
from penstock.tables.single.preview import RowsPreview


class KeyedPreview(RowsPreview):
    def __init__(self, job: JobSpec) -> None:
        super().__init__(job, HIDDEN)
        self.partition_by = ()
        self._keyed_job = job_of(self.job, KeyedSpec)

    def stage(self, batch: Batch, folder: str) -> Stage:
        numbers = {} if self.log is None else self.log.transactions()
        partitions = [piece.partition for piece in batch.slices]
        return fused_stage(keyed_flow(self._keyed_job, self.flow(batch, folder), numbers, partitions))

    def outputs(self, gathered: Gathered, folder: str) -> Iterator[Output]:
        layout, storage = self._keyed_job.table.layout, open_storage(f"{folder}/rows", {})
        parts = parts_by_bucket([file for share in gathered.all_shares() for file in share.files])
        buckets = {bucket: [read_part(storage, part) for part in parts[bucket]] for bucket in parts}
        schema = pa.schema([*self.columns, pa.field(DELETE, pa.bool_())])
        rows = pa.Table.from_batches([rows.select(schema.names) for of in buckets.values() for rows in of], schema)
        files = {} if self.log is None else files_by_bucket(self.log.active_files())
        keys = key_frame(layout, rows).n_unique() if rows.num_rows else 0
        deletes, written = pc.sum(rows[DELETE]).as_py() or 0, gathered.total.written
        yield Output(
            "",
            rows,
            {
                f"{BUCKET}={bucket}": (sum(rows.num_rows for rows in of), len(files.get(bucket, ())))
                for bucket, of in buckets.items()
            },
            self.new_columns,
            {DELETE: "deletes its key"},
            (
                f"{keys} keys in {len(buckets)} of {layout.buckets} buckets; deletes: {deletes}; "
                f"superseded in the batch: {written - keys}",
                "files are those that the buckets have now; those with a replaced row are marked or rewritten",
            ),
        )


open_preview = KeyedPreview
