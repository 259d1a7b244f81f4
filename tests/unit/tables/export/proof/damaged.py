"""The root of an export with bad records, and the ways to damage it."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.environment import Environment, new_batch_id
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import Counts, StagedFile
from penstock.flow.write.names import staged_name
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.flow.write.report import UNROUTED, Share
from penstock.job.spec import JobSpec, job_of
from penstock.logs.log import Partition, Slice
from penstock.proof.findings import Check, Verdict, Violation, ViolationKind, earliest
from penstock.proof.subject import Depth
from penstock.tables.export.ledger.proposal import RoutedPart
from penstock.tables.export.old_proof.offsets.reconcile import Reconciliation
from penstock.tables.export.proof.facts import LedgerFacts
from penstock.tables.export.proof.verification import ledger_facts, provable
from penstock.tables.export.spec import ExportSpec
from penstock.tables.quarantine.table import Listed, QuarantineTable
from tests.export_root import MONDAY, TOKEN, ZERO, ExportRoot, Rows, job_file

Checks = dict[str, Check]


def facts_of(job: JobSpec) -> LedgerFacts:
    facts = ledger_facts(job_of(job, ExportSpec))
    assert isinstance(facts, LedgerFacts)
    return facts


def checked(job: JobSpec, facts: LedgerFacts | None = None, offsets_per_pass_max: int = 1000) -> Checks:
    """What `verify` says of ledger and files, without a log."""
    facts = facts or facts_of(job)
    table = provable(job_of(job, ExportSpec), facts)
    offsets = Reconciliation.of(job, table.subject, table.sources, Depth(False, None, offsets_per_pass_max))
    return {check.name: check for check in (*table.own_checks(offsets), offsets.check_offsets())}


def failed(checks: Checks) -> list[str]:
    return [name for name, check in checks.items() if check.verdict is Verdict.VIOLATED]


def write_with_bad(
    root: ExportRoot, partition: Partition, place: tuple[int, int], rows: Rows, bad: Sequence[int], filtered: int = 0
) -> None:
    """Commit a slice in which some records are bad and some are dropped; nobody has appended the bad ones yet."""
    start, end = place
    shares = root.stage(partition, place, rows, pieces=(start,))
    files = _bad_files(root.job, partition, place, bad)
    counts = Counts(len(bad) + filtered, 0, len(bad), filtered)
    shares[UNROUTED] = Share(counts, min(bad, default=start), 1, quarantine_files=files)
    takes = dict.fromkeys(("order", "click"), start)
    done = root.table.land(new_batch_id(), (RoutedPart(Slice(partition, start, end, start), TOKEN, shares, takes),))
    assert not done.refused


def append_bad(root: ExportRoot) -> None:
    """Append the quarantine files that the ledger lists last, as the next run would."""
    listings = {each: here.listing for each, here in root.state.partitions.items()}
    life = root.state.life
    assert life is not None
    QuarantineTable(root.job, Environment(), life).append_listed(
        [Listed(each, found.number, found.files) for each, found in listings.items() if found is not None]
    )


def _bad_files(
    job: JobSpec, partition: Partition, place: tuple[int, int], bad: Sequence[int]
) -> tuple[StagedFile, ...]:
    if not bad:
        return ()
    rows = [
        {
            "job": job.name,
            "topic": partition.topic,
            "topic_id": partition.topic_id,
            "partition": partition.number,
            "offset": each,
        }
        for each in bad
    ]
    writer = StagedWriter(
        WriteOptions(job.table.quarantine_path, QUARANTINE_SCHEMA),
        lambda: staged_name(partition.topic_id, partition.number, *place, uuid.uuid4().hex),
        partition.topic,
        partition.number,
    )
    writer.write(pa.RecordBatch.from_pylist(rows, schema=QUARANTINE_SCHEMA))
    return writer.finish()


def rewrite_rows(path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Write a data file again with other rows under the same footer."""
    table = pq.ParquetFile(path).read()
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(pa.Table.from_pylist(change(table.to_pylist()), table.schema))
    path.write_bytes(sink.getvalue())


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))


def entry_path(root: ExportRoot, number: int) -> Path:
    return root.lake / root.table.places.entry(number)


def first_violation(checks: Checks) -> Violation | None:
    return earliest(check.violation for check in checks.values())


def at(partition: int, offset: int, kind: ViolationKind, end: int | None = None) -> Violation:
    return Violation("shop", partition, offset, kind, end)


def bad_root(tmp_path: Path) -> ExportRoot:
    """Offsets 6 and 7 are bad, 8 and 9 are of a type that is dropped."""
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    write_with_bad(root, ZERO, (0, 10), {("order", MONDAY): range(6)}, [6, 7], filtered=2)
    return root
