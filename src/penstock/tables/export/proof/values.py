"""The values of an export: each record is routed, decoded and filed again, so type and day are compared as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from penstock.errors import TransientError
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import RoutedSlice
from penstock.flow.write.report import decode_report
from penstock.lake.storage import open_storage
from penstock.logs.log import Slice
from penstock.proof.offsets.table import DataFile
from penstock.proof.values.compare import RowValues
from penstock.proof.values.files import ValueFile
from penstock.proof.values.rewriting import BATCH_ID, data_file
from penstock.tables.export.ledger.names import type_and_day
from penstock.tables.export.ledger.state import LedgerState
from penstock.tables.export.proof.facts import LedgerFacts
from penstock.tables.export.proof.files import Landed
from penstock.tables.export.table import ExportTable
from penstock.tables.export.writer import fanout_flow


@dataclass(frozen=True, slots=True)
class ExportRewriter:
    """The flow of an export, all types from the first offset on."""

    table: ExportTable
    state: LedgerState

    def written(self, piece: Slice, records: Iterable[pa.RecordBatch], folder: Path) -> Iterator[ValueFile]:
        key = (piece.partition.topic, piece.partition.number)
        takes = dict.fromkeys(self.state.types, piece.start)
        routed = RoutedSlice(piece.partition.topic_id, piece.start, piece.end, (piece.start,), takes)
        flow = replace(
            fanout_flow(self.table, self.table.routing, BATCH_ID, {key: routed}),
            root_url=str(folder / "root"),
            quarantine_url=str(folder / "quarantine"),
            storage_options={},
        )
        storage = open_storage(flow.root_url, {})
        for report in fanout_stage(flow)(records):
            shares = decode_report(report.column(0)[0].as_py()).shares.get(key, {})
            for name, share in shares.items():
                if share.failed:
                    raise TransientError(f"records of type {name} cannot be written again", detail=share.failed)
                for file in share.files:
                    constants = {"type": name, "day": file.partition_values["day"]}
                    yield ValueFile(storage, data_file(file), _columns(self.table, name), constants)


def row_values(facts: LedgerFacts, landed: Landed) -> RowValues:
    """The rows of all types, to be compared with the log."""
    return RowValues(
        files=[
            ValueFile(facts.table.storage, file, _columns(facts.table, name), {"type": name, "day": _day(file)})
            for name, files in landed.types.items()
            for file in files.files
        ],
        rewriter=ExportRewriter(facts.table, facts.state),
        # Types may lag, and records may be dropped by their time: what is missing is a matter of offsets.
        strict=False,
    )


def _columns(table: ExportTable, name: str) -> pa.Schema:
    found = table.columns_of(name)
    return found if found is not None else pa.schema([])


def _day(file: DataFile) -> str:
    """By the table's word, or by the folder where a plain file is or will be."""
    stated = file.partition_values.get("day")
    if stated is not None:
        return str(stated)
    place = type_and_day(file.moves_to or file.path)
    return place[1] if place is not None else ""
