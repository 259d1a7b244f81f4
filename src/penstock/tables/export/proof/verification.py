"""`verify` of an export: every record of the log is in one file of one type, or in quarantine, or counted (I2, I3).

The ledger is checked as of one entry while the job may go on: its totals, the chain of its slices, the rows of the
files that it names, their offsets over all types and days, and the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from penstock.errors import PenstockError, TransientError
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import RoutedSlice
from penstock.flow.write.report import decode_report
from penstock.job.spec import DAY_FOLDER, JobSpec
from penstock.lake.state import TOTAL_NAMES
from penstock.lake.storage import open_storage
from penstock.logs.log import Partition, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, Check, Proof, Verdict
from penstock.proof.subject import Depth
from penstock.tables.export.ledger.names import type_and_day
from penstock.tables.export.ledger.state import LedgerState, RoutedPartition
from penstock.tables.export.old_proof.frame import Provable, prove
from penstock.tables.export.old_proof.invariants import RowCounts, check_rows, check_totals
from penstock.tables.export.old_proof.offsets.owners import named_columns
from penstock.tables.export.old_proof.offsets.reconcile import Reconciliation
from penstock.tables.export.old_proof.offsets.table import DataFile
from penstock.tables.export.old_proof.offsets.verdicts import Leave
from penstock.tables.export.old_proof.sources import Sources, Subject
from penstock.tables.export.old_proof.values.files import BATCH_ID, ValueFile, data_file
from penstock.tables.export.old_proof.values.rows import RowValues
from penstock.tables.export.proof.facts import LedgerFacts, encode_proved, incarnations_of, read_ledger
from penstock.tables.export.proof.files import Landed, deleted_days, delta_files, parquet_files
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.table import ExportTable
from penstock.tables.export.writer import fanout_flow


def prove_export(job: JobSpec[ExportSpec], depth: Depth, open_log: OpenLog) -> Proof:
    """Check the ledger, the files and the log of an export."""
    facts = ledger_facts(job, from_first=depth.every_entry)
    if facts is None:
        return NO_TABLE
    if isinstance(facts, Check):
        return Proof(None, (facts,))
    facts.table.refuse_other_names()
    proof = prove(job, depth, open_log, provable(job, facts))
    keep_for_next(facts, proof.checks)
    return proof


def provable(job: JobSpec[ExportSpec], facts: LedgerFacts) -> Provable:
    """The ledger with the files of all types."""
    columns = named_columns(job)
    find_files = delta_files if job.table.format == "delta" else parquet_files
    landed = find_files(facts.table, facts.state, facts.chain, columns)
    return Provable(
        version=facts.state.number,
        states=facts.state.partitions,
        subject=_subject(facts, landed),
        sources=Sources(
            facts.table.storage, [*landed.types.values()], facts.quarantine.storage, facts.quarantine.files, columns
        ),
        own_checks=lambda offsets: _own_checks(facts, landed, offsets),
        values=lambda: row_values(facts, landed),
    )


def ledger_facts(job: JobSpec[ExportSpec], *, from_first: bool = False) -> LedgerFacts | Check | None:
    """What the ledger tells, read once more if days were deleted since: their rows do not have to be there."""
    facts = read_ledger(job, from_first=from_first)
    if not isinstance(facts, LedgerFacts) or job.table.format != "parquet":
        return facts
    deleted = deleted_days(facts.table, facts.state, facts.chain)
    return read_ledger(job, deleted) if deleted != dict(facts.chain.deleted) else facts


def keep_for_next(facts: LedgerFacts, checks: Iterable[Check]) -> None:
    """Keep what was proved of the entries, so that the next verification may read only what comes after them.

    What could not be checked, such as records that the log has lost, says nothing against the entries.
    """
    last = facts.last
    if last is None or last.number != facts.state.number or facts.quarantine.pending.files:
        return
    if all(each.verdict is not Verdict.VIOLATED for each in checks):
        proved = replace(facts.proved, number=last.number, batch_id=last.batch_id)
        # Who may not write here verifies from the first entry each time.
        with suppress(PenstockError):
            facts.table.storage.put(facts.table.places.proved, encode_proved(proved))


def _own_checks(facts: LedgerFacts, landed: Landed, offsets: Reconciliation) -> tuple[Check, ...]:
    partitions = facts.state.partitions
    ahead = dict(zip(landed.types, offsets.ahead, strict=True))
    faults, warnings = (*landed.faults, *facts.quarantine.faults), tuple(_warnings(facts, landed, ahead))
    return (
        check_totals(partitions, lambda each: _lanes_fault(partitions[each])),
        facts.slices,
        check_rows(_row_counts(facts, landed, ahead), faults, warnings),
    )


def _subject(facts: LedgerFacts, landed: Landed) -> Subject:
    partitions = facts.state.partitions
    owed = {} if facts.unfinished is None else facts.unfinished.offsets
    return Subject(
        spans={each: facts.chain.spans(each, here) for each, here in partitions.items()},
        incarnations=replace(incarnations_of(facts.state), others=landed.others),
        leaves={each: Leave(twice_below=_twice_below(facts, each), owed=owed.get(each, ())) for each in partitions},
        replayed=frozenset(each for each, here in partitions.items() if here.totals.replayed),
    )


def _twice_below(facts: LedgerFacts, partition: Partition) -> int | None:
    """Up to where a type that came later may have what another place has: only if anything was read again for it."""
    here, track = facts.state.of(partition), facts.chain.tracks.get(partition)
    if not here.totals.backfilled and not facts.chain.rebuilt:
        return None
    return here.position if track is None or partition in facts.chain.faulty else track.twice_below


def _lanes_fault(here: RoutedPartition) -> str:
    """Why what is left to types that lag is not what was deferred."""
    left = sum(lane.deferred for lane in here.lanes.values())
    if left != here.totals.deferred:
        return f"{here.totals.deferred} records deferred, types that lag know of {left}"
    negative = [name for name in TOTAL_NAMES if getattr(here.totals, name) < 0]
    return f"{', '.join(negative)} below zero" if negative else ""


def _row_counts(facts: LedgerFacts, landed: Landed, ahead: Mapping[str, int]) -> RowCounts:
    totals = [here.totals for here in facts.state.partitions.values()]
    pending = facts.quarantine.pending.rows
    quarantined = sum(each.quarantined - each.replayed for each in totals)
    there = facts.quarantine.taken.rows
    if facts.chain.rebuilt and there + pending > quarantined:
        there = quarantined - pending
    return RowCounts(
        table=sum(landed.rows.values()) - sum(ahead.values()),
        written=sum(each.written + each.skipped + each.replayed for each in totals)
        - sum(facts.chain.deleted_rows.values()),
        quarantine=there,
        quarantined=quarantined,
        pending=pending,
        replay_unfinished=facts.unfinished is not None,
    )


def _warnings(facts: LedgerFacts, landed: Landed, ahead: Mapping[str, int]) -> Iterator[str]:
    yield from landed.warnings
    for name, count in sorted(ahead.items()):
        if count:
            yield f"{count} rows of type {name} are ahead of the ledger: the next run counts them"
    if facts.chain.rebuilt:
        yield "the ledger was made again from the files: what left no row before that is not counted"


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
                    yield ValueFile(storage, data_file(file), self.table.columns_of(name) or pa.schema([]), constants)


def row_values(facts: LedgerFacts, landed: Landed) -> RowValues:
    """The rows of all types, to be compared with the log."""
    return RowValues(
        files=[
            ValueFile(
                facts.table.storage,
                file,
                facts.table.columns_of(name) or pa.schema([]),
                {"type": name, "day": _day(file)},
            )
            for name, files in landed.types.items()
            for file in files.files
        ],
        rewriter=ExportRewriter(facts.table, facts.state),
        # Types may lag, and records may be dropped by their time: what is missing is a matter of offsets.
        strict=False,
    )


def _day(file: DataFile) -> str:
    """By the table's word, or by the folder where a plain file is or will be."""
    _, day = type_and_day(file.moves_to or file.path) or ("", "")
    return str(file.partition_values.get(DAY_FOLDER, day))
