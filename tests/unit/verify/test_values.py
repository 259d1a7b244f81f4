"""Values are compared with the log: what differs is named, what cannot be compared is not proven."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.environment import Environment, new_batch_id
from penstock.flow.compile import flow_of
from penstock.flow.task import fused_stage
from penstock.flow.write.report import UNROUTED, TaskReport, decode_report
from penstock.job.spec import JobSpec, SqlSpec
from penstock.lake.delta.compact import compact
from penstock.lake.delta.opening import open_or_create
from penstock.lake.proposal import Proposal, SlicePart, StartPart
from penstock.logs.log import Batch, Bounds, Partition, Slice
from penstock.proof.values import sampled
from penstock.quarantine.table import Quarantine
from penstock.tables.registry import load_job
from penstock.watch.verify import Sample, Verdict, VerifyReport, Violation, ViolationKind, verify
from tests.support.memory_log import MemoryLog
from tests.support.small_table import Load, SmallTable
from tests.unit.verify.lakes import Kind, made

ONLY = Partition("orders", "topic-id", 0)
JOB = """\
job: orders
log:
  kafka: {{bootstrap: "127.0.0.1:1", topics: [orders], group: orders}}
decode: json
schema: {{at: string, kind: string, amount: "decimal(12,2)", tags: [string], who: {{name: string, age: int}}}}
columns: {{day: day(at){places}}}
table:
  delta: {{path: {path}, partition_by: [day, kind]}}
on: {{bad_record: quarantine, new_column: add}}
place: none
"""
ALL = Sample(None)
OPEN = {"offsets": Verdict.NOT_PROVEN}
PLACES = ", partition: kafka.partition, offset: kafka.offset"


def record(number: int, **more: Any) -> bytes:
    body = {
        "at": f"2026-03-0{number % 3 + 1}T12:00:00Z",
        "kind": ["a", "", None][number % 3],
        "amount": f"{number}.10",
        "tags": ["x", None][: number % 3],
        "who": {"name": f"n{number}", "age": None} if number % 2 else None,
    }
    return json.dumps(body | more).encode()


class Lake:
    """A job whose slices are decoded and committed as tasks and engine do it, without Spark."""

    def __init__(self, folder: Path, places: bool = True) -> None:
        file = folder / "orders.yaml"
        file.write_text(JOB.format(path=json.dumps(str(folder / "lake")), places=PLACES if places else ""))
        self.job: JobSpec = load_job(file)
        columns = {"day": pa.date32()} | ({"partition": pa.int32(), "offset": pa.int64()} if places else {})
        schema = pa.schema([*self.job.schema, *columns.items()])
        self.table = open_or_create(self.job.table, self.job.name, schema, "add")
        self.quarantine = Quarantine(self.job, self.table, Environment())
        self.table.commit(Proposal(self.job.name, new_batch_id(), (StartPart(ONLY, 0, 1),)))
        self.records: dict[int, bytes | None] = {}

    def write(self, values: Mapping[int, bytes | None]) -> None:
        """Commit a slice of these records."""
        self.records.update(values)
        piece = Slice(ONLY, min(values), max(values) + 1, min(values))
        batch = Batch(new_batch_id(), (piece,))
        flow = flow_of(self.job, batch, self.table.schema, self.table.spec.partition_by, self.table.quarantine_url)
        [done] = fused_stage(flow)(self.log().records(ONLY, piece.start, piece.end))
        share = decode_report(done.column(0)[0].as_py(), TaskReport).shares["orders", 0][UNROUTED]
        part = SlicePart(piece, 1, share.counts, share.files, share.quarantine_files)
        outcome = self.table.commit(Proposal(self.job.name, flow.batch_id, (part,)))
        self.quarantine.append(outcome.accepted)

    def log(self, first: int = 0) -> MemoryLog:
        return MemoryLog({ONLY: dict(self.records)}, {ONLY: first})

    def verify(self, sample: Sample | None = ALL, first: int = 0) -> VerifyReport:
        return verify(self.job, values=sample, open_log=lambda _: self.log(first))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    lake.write({number: record(number) for number in range(7)} | {7: b"bad", 8: None})
    lake.write({item: record(item) for item in range(9, 20)})
    return lake


def verdicts(report: VerifyReport) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in report.checks if not check.ok}


def test_partition_values_nested_values_and_bad_records_are_as_the_log_gives_them(lake: Lake) -> None:
    assert verdicts(lake.verify()) == {}
    compact(lake.table, 1 << 20)
    assert verdicts(lake.verify()) == {}


def test_a_column_added_after_a_file_is_not_compared_in_it(lake: Lake) -> None:
    lake.table.add_columns(pa.schema([("colour", pa.string())]))
    lake.write({20: record(20, colour="red"), 21: record(21)})
    assert verdicts(lake.verify()) == {}


def test_a_column_that_was_written_as_null_is_found(lake: Lake) -> None:
    DeltaTable(lake.job.table.path).update({"amount": "NULL"}, predicate="amount = 4.10")
    result = lake.verify()
    assert verdicts(result) == {"values": Verdict.VIOLATED}
    assert result.first_violation == Violation("orders", 0, 4, ViolationKind.ALTERED)


def test_without_places_rows_are_counted_and_neither_they_nor_their_values_are_proven(tmp_path: Path) -> None:
    lake = Lake(tmp_path, places=False)
    lake.write({number: record(number) for number in range(7)} | {7: b"bad", 8: None})
    report = lake.verify()
    assert verdicts(report) == {"offsets": Verdict.NOT_PROVEN, "values": Verdict.NOT_PROVEN}
    for check in report.checks:
        assert all("place: none" in question.remedy for question in check.unproven)
    DeltaTable(lake.job.table.path).delete("amount = 4.10")
    assert verdicts(lake.verify())["rows"] is Verdict.VIOLATED


def test_a_row_in_the_wrong_partition_of_the_table_is_found(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write({number: record(number) for number in range(6)})
    DeltaTable(lake.job.table.path).update({"day": "DATE '2026-05-05'"}, predicate='"offset" = 3')
    [values] = [check for check in lake.verify().checks if check.name == "values"]
    assert values.violation == Violation("orders", 0, 3, ViolationKind.ALTERED)


def test_a_row_filed_under_another_day_is_found_without_the_log_and_without_values(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write({number: record(number) for number in range(6)})
    DeltaTable(lake.job.table.path).update({"day": "DATE '2026-05-05'"}, predicate='"offset" = 3')
    report = lake.verify(None)
    assert report.first_violation == Violation("orders", 0, 3, ViolationKind.MISFILED)
    assert verdicts(report) == {"rows": Verdict.VIOLATED}
    [rows] = [check for check in report.checks if check.name == "rows"]
    assert rows.detail == "1 rows are filed under another day than day(at) gives"


@pytest.mark.parametrize("first", [0, 5], ids=["whole log", "trimmed log"])
@pytest.mark.parametrize("compacted", [False, True], ids=["as written", "compacted"])
def test_a_row_filed_under_another_day_is_found_after_a_compaction_and_without_its_record(
    tmp_path: Path, compacted: bool, first: int
) -> None:
    lake = Lake(tmp_path)
    lake.write({number: record(number) for number in range(6)})
    lake.write({number: record(number) for number in range(6, 9)})
    DeltaTable(lake.job.table.path).update({"day": "DATE '2026-05-05'"}, predicate='"offset" = 3')
    if compacted:
        compact(lake.table, 1 << 20)
    report = lake.verify(None, first)
    assert report.first_violation == Violation("orders", 0, 3, ViolationKind.MISFILED)
    assert verdicts(report) == {"rows": Verdict.VIOLATED}


def test_a_row_filed_under_another_day_is_found_where_rows_carry_no_place(tmp_path: Path) -> None:
    lake = Lake(tmp_path, places=False)
    lake.write({number: record(number) for number in range(6)})
    DeltaTable(lake.job.table.path).update({"day": "DATE '2026-05-05'"}, predicate="amount = 3.10")
    report = lake.verify(None)
    assert verdicts(report) == {"rows": Verdict.VIOLATED} | OPEN
    [offsets] = [check for check in report.checks if check.name == "offsets"]
    assert "only counted" in offsets.unproven[0].what
    assert "place: none" in offsets.unproven[0].remedy


def test_a_missing_row_among_filtered_records_is_named_by_verify_values(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write({number: None if number in (1, 4) else record(number) for number in range(6)})
    DeltaTable(lake.job.table.path).delete('"offset" = 3')
    assert lake.verify(None).first_violation == Violation("orders", 0, 0, ViolationKind.MISSING, 6)
    assert lake.verify().first_violation == Violation("orders", 0, 3, ViolationKind.MISSING)


def test_a_missing_row_among_rows_filtered_by_sql_is_narrowed_to_its_slice(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write({number: None if number in (1, 4) else record(number) for number in range(6)})
    lake.job = replace(lake.job, sql=SqlSpec(where="amount > 1"))
    DeltaTable(lake.job.table.path).delete('"offset" = 3')
    assert lake.verify(None).first_violation == Violation("orders", 0, 0, ViolationKind.MISSING, 6)


def test_expired_records_are_proved_by_counts_and_their_values_are_not_proven(lake: Lake) -> None:
    plain, full = lake.verify(None, first=9), lake.verify(first=9)
    assert verdicts(plain) == {}
    records = next(check for check in plain.checks if check.name == "records")
    assert records.facts == {"records": 11, "offsets_deleted": 9}
    assert "9 older offsets are no longer in the log" in records.detail
    assert verdicts(full) == {"values": Verdict.NOT_PROVEN}
    values = next(item for item in full.checks if item.name == "values")
    assert "below offset 9" in values.unproven[0].what
    assert values.facts["compared"] == 11


def test_a_sample_reports_how_many_rows_it_compared(lake: Lake) -> None:
    values = next(check for check in lake.verify(Sample(10, seed=5)).checks if check.name == "values")
    assert values.verdict is Verdict.PROVEN
    assert values.facts["seed"] == 5
    assert values.facts["of_offsets"] == 20
    assert f"a sample of {values.facts['compared']} (seed 5) out of 20" in values.detail


def test_values_of_a_job_with_sql_are_not_proven(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write({0: record(0)})
    lake.job = replace(lake.job, sql=SqlSpec(select=("*",)))
    values = next(check for check in lake.verify().checks if check.name == "values")
    assert values.verdict is Verdict.NOT_PROVEN
    assert "sql" in values.unproven[0].what


def test_a_sample_is_drawn_from_all_partitions_and_is_the_same_for_one_seed() -> None:
    one, other = Partition("t", "i", 0), Partition("t", "i", 1)
    ranges = {one: (10, 5_000), other: (0, 100_000)}
    sample = sampled(ranges, Sample(2_000, seed=1))
    assert sample == sampled(ranges, Sample(2_000, seed=1)) != sampled(ranges, Sample(2_000, seed=2))
    assert sum(hi - lo for item in sample.values() for lo, hi in item) <= 2_000
    for partition, offsets in sample.items():
        assert all(ranges[partition][0] <= lo < hi <= ranges[partition][1] for lo, hi in offsets)


def test_rows_without_a_place_are_not_proven_only_where_offsets_are_missing(tmp_path: Path) -> None:
    """Rows from before the columns were kept, compacted with later ones."""
    lake = made(tmp_path, Kind(places=True, compacted=True, recreated=False))
    DeltaTable(lake.job.table.path).update({"offset": "NULL"}, predicate='"partition" = 1 AND id = 5')
    report = lake.verify()
    assert verdicts(report) == {"offsets": Verdict.NOT_PROVEN}
    [offsets] = [check for check in report.checks if check.name == "offsets"]
    assert "1 offsets are not found" in offsets.unproven[0].what
    zero = lake.partitions[0]
    SmallTable(lake.job).commit(zero, Load(12, 13, [12]))
    DeltaTable(lake.job.table.path).delete('"partition" = 0 AND "offset" = 4')
    grown = replace(lake.log, values={**lake.log.values, zero: {**lake.log.values[zero], 12: b'{"id": 12}'}})
    assert grown.bounds([zero]) == {zero: Bounds(0, 13)}
    result = verify(lake.job, open_log=lambda _: grown)
    assert result.first_violation == Violation("orders", 0, 4, ViolationKind.MISSING)
