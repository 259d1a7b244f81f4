"""`verify` proves a table against itself and its log, and names the first offset that is wrong."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from deltalake import DeltaTable, write_deltalake
from rich.console import Console

from penstock.cli.verify import print_report
from penstock.cli.verify import verify as verify_command
from penstock.flow.write.manifest import Counts
from penstock.job.spec import JobSpec, kafka_of
from penstock.lake.delta.compact import compact
from penstock.watch.verify import Sample, Verdict, ViolationKind, verify
from tests.cases.verify import CHECKS, check_of, failed, filled, job_of_twenty, recreated, violation
from tests.support.kafka import Produce, Topics
from tests.support.small_table import SCHEMA, Load, SmallTable, partitions_of, small_job, started, without_offsets


@pytest.fixture
def job(bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path) -> JobSpec:
    return job_of_twenty(bootstrap, topic, produce, tmp_path)


def append(job: JobSpec, partition: int, offsets: list[int]) -> None:
    """Another writer puts rows into the table."""
    columns = [offsets, [partition] * len(offsets), offsets]
    rows = pa.table([pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    write_deltalake(job.table.path, rows, mode="append")


def test_the_proof_is_the_same_in_many_small_passes(job: JobSpec) -> None:
    filled(job)
    assert verify(job, offsets_per_pass_max=3).ok
    append(job, 1, [5])
    assert verify(job, offsets_per_pass_max=3).first_violation == violation(job, 1, 5, ViolationKind.TWICE)


def test_a_shallow_verification_does_not_read_records(job: JobSpec) -> None:
    filled(job)
    report = verify(job, deep=False)
    assert report.ok
    assert [check.name for check in report.checks] == CHECKS[:-1]


def test_a_row_that_another_writer_doubled_is_named(job: JobSpec) -> None:
    filled(job)
    append(job, 0, [8, 3])
    report = verify(job)
    assert failed(report) == ["rows", "offsets"]
    assert report.first_violation == violation(job, 0, 3, ViolationKind.TWICE)


def test_a_row_that_another_writer_deleted_is_named(job: JobSpec) -> None:
    filled(job)
    DeltaTable(job.table.path).delete('"partition" = 1 AND "offset" IN (2, 6)')
    report = verify(job)
    assert failed(report) == ["rows", "offsets", "records"]
    assert report.first_violation == violation(job, 1, 2, ViolationKind.MISSING)


def test_a_deleted_row_is_named_without_the_log(job: JobSpec) -> None:
    filled(job)
    DeltaTable(job.table.path).delete('"partition" = 0 AND "offset" = 7')
    report = verify(job, deep=False)
    assert report.first_violation == violation(job, 0, 7, ViolationKind.MISSING)


def test_a_row_that_is_also_in_quarantine_is_named(job: JobSpec) -> None:
    filled(job)
    append(job, 0, [6])
    assert verify(job).first_violation == violation(job, 0, 6, ViolationKind.BOTH)


def test_a_row_beyond_the_position_is_named(job: JobSpec) -> None:
    filled(job)
    append(job, 1, [8])
    assert verify(job).first_violation == violation(job, 1, 8, ViolationKind.BEYOND_POSITION)


def test_a_row_of_a_partition_that_was_never_read_is_named(job: JobSpec) -> None:
    filled(job)
    append(job, 7, [0])
    first_violation = verify(job).first_violation
    assert first_violation is not None
    assert (first_violation.partition, first_violation.offset, first_violation.kind) == (
        7,
        0,
        ViolationKind.UNKNOWN_PARTITION,
    )


def test_rows_that_the_log_never_had_are_found(bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path) -> None:
    """The commit marker of the transaction at offset 2 is not a record."""
    name = topic()
    produce(name, ["a", "b"], transactional=True)
    produce(name, ["c"])
    job = small_job(bootstrap, name, tmp_path)
    [only] = partitions_of(job)
    table = SmallTable(job)
    table.start(only)
    table.commit(only, Load(0, 4, [0, 1, 2, 3]))
    assert verify(job, deep=False).ok
    assert verify(job).first_violation == violation(job, 0, 2, ViolationKind.NOT_IN_LOG)


def test_filtered_records_are_counted_not_missed(job: JobSpec) -> None:
    zero, _ = partitions_of(job)
    table = SmallTable(job)
    table.start(zero)
    table.commit(zero, Load(0, 10, [0, 2, 4, 6, 8], filtered=5))
    assert verify(job).ok
    DeltaTable(job.table.path).delete('"offset" = 4')
    assert verify(job).first_violation == violation(job, 0, 0, ViolationKind.MISSING, end=10)


def test_counts_that_are_off_by_one_are_found_where_no_offsets_are_kept(job: JobSpec) -> None:
    zero, _ = partitions_of(job)
    table = SmallTable(job)
    table.start(zero)
    table.commit(zero, Load(0, 10, range(9)), counts=Counts(read=9, written=9))
    report = verify(without_offsets(job))
    assert check_of(report, "offsets").verdict is Verdict.NOT_PROVEN
    assert report.first_violation == violation(job, 0, 0, ViolationKind.NOT_COUNTED, end=10)


def test_quarantine_files_that_are_listed_and_not_yet_appended_count(job: JobSpec) -> None:
    zero, _ = partitions_of(job)
    table = SmallTable(job)
    table.start(zero)
    table.commit(zero, Load(0, 10, range(2, 10), bad=[0, 1]), quarantined=False)
    report = verify(job)
    assert failed(report) == []
    assert check_of(report, "rows").warnings
    table.quarantine.append_missing(table.table, [zero])
    after = verify(job)
    assert failed(after) == []
    assert not check_of(after, "rows").warnings


def test_values_are_compared_although_the_job_file_has_a_field_that_the_table_gets_with_the_next_run(
    job: JobSpec,
) -> None:
    filled(job)
    later = replace(job, schema=job.schema.append(pa.field("later", pa.string())))
    assert verify(later, values=Sample(None)).checks == verify(job, values=Sample(None)).checks


def test_compaction_and_a_log_checkpoint_change_nothing(job: JobSpec) -> None:
    table = filled(job)
    compact(table.table, 1 << 20)
    DeltaTable(job.table.path).create_checkpoint()
    assert failed(verify(job)) == []
    append(job, 0, [9])
    assert verify(job).first_violation == violation(job, 0, 9, ViolationKind.TWICE)


def test_history_that_has_expired_leaves_totals_and_offsets_proved(job: JobSpec) -> None:
    table = filled(job)
    DeltaTable(job.table.path).create_checkpoint()
    _, one = partitions_of(job)
    table.commit(one, Load(8, 10, [8, 9]))
    log = Path(job.table.path) / "_delta_log"
    for version in range(table.table.version):
        (log / f"{version:020}.json").unlink()
    report = verify(job)
    assert failed(report) == []
    assert check_of(report, "slices").facts == {"slices": 1}
    assert check_of(report, "offsets").facts == {"offsets": 20}


def test_both_incarnations_of_a_recreated_topic_may_have_the_same_offsets(
    job: JobSpec, topic: Topics, produce: Produce
) -> None:
    table = filled(job)
    recreated(job, topic, produce)
    zero, one = partitions_of(job)
    table.start(zero)
    table.start(one)
    table.commit(zero, Load(0, 10, range(10)))
    report = verify(job)
    assert failed(report) == []
    compact(table.table, 1 << 20)
    after = verify(job)
    assert failed(after) == []
    assert not after.ok, "the incarnations of compacted rows cannot be distinguished"


def test_rows_lost_and_doubled_after_a_recreated_topic_and_a_compaction_are_not_proven(
    job: JobSpec, topic: Topics, produce: Produce
) -> None:
    """The number of rows is right and their incarnation unknown: 3 is missing in both, 4 is duplicated."""
    table = filled(job)
    recreated(job, topic, produce)
    zero, one = partitions_of(job)
    table.start(zero)
    table.start(one)
    table.commit(zero, Load(0, 10, range(10)))
    compact(table.table, 1 << 20)
    DeltaTable(job.table.path).delete('"partition" = 0 AND "offset" = 3')
    append(job, 0, [4, 4])
    assert check_of(verify(job), "offsets").verdict is Verdict.NOT_PROVEN


def test_one_row_without_a_place_hides_nothing_that_is_missing_elsewhere(job: JobSpec) -> None:
    filled(job)
    columns = [[99], [None], [None]]
    rows = pa.table([pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    write_deltalake(job.table.path, rows, mode="append")
    DeltaTable(job.table.path).delete('"partition" = 1 AND "offset" IN (2, 6)')
    report = verify(job)
    assert "offsets" in failed(report)
    assert report.first_violation == violation(job, 1, 2, ViolationKind.MISSING)


def test_without_offset_columns_a_missing_file_and_a_missing_row_are_found(job: JobSpec) -> None:
    zero, _ = partitions_of(job)
    plain = without_offsets(job)
    table = SmallTable(plain)
    table.start(zero)
    table.commit(zero, Load(0, 6, range(6)))
    table.commit(zero, Load(6, 10, range(6, 10)))
    first, last = (Path(item) for item in sorted(DeltaTable(plain.table.path).file_uris()))
    whole = verify(plain)
    assert [(check.name, check.verdict) for check in whole.checks if not check.ok] == [("offsets", Verdict.NOT_PROVEN)]
    kept = pq.read_table(last)
    pq.write_table(kept.slice(1), last)
    assert failed(verify(plain)) == ["rows"]
    pq.write_table(pa.concat_tables([kept.slice(1), kept.slice(1, 1)]), last, compression="snappy")
    assert verify(plain, values=Sample(None)).verdict is not Verdict.PROVEN, "one row stands for another"
    first.unlink()
    assert "files that the table names were deleted" in check_of(verify(plain), "rows").detail


def test_rows_of_two_jobs_in_one_table_are_distinguished(
    job: JobSpec, bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path
) -> None:
    other_topic = topic()
    produce(other_topic, ["a"] * 5)
    filled(job)
    other = small_job(bootstrap, other_topic, tmp_path, name="returns")
    table = SmallTable(other)
    [only] = partitions_of(other)
    table.start(only)
    table.commit(only, Load(0, 5, range(5)))
    assert failed(verify(job)) == []
    assert failed(verify(other)) == []


def test_without_a_table_nothing_is_proved(job: JobSpec) -> None:
    report = verify(job)
    assert failed(report) == ["table"]
    assert report.version is None


def test_the_command_prints_the_proof_and_exits_with_1_when_it_fails(
    job: JobSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(job)
    file = tmp_path / "orders.yaml"
    file.write_text(
        f"job: orders\n"
        f"log:\n  kafka: {{bootstrap: '{kafka_of(job).bootstrap}', topics: [{job.log.topics[0]}]}}\n"
        f"decode: json\nschema: {{id: long}}\n"
        f"columns: {{partition: kafka.partition, offset: kafka.offset}}\n"
        f"table:\n  delta: {{path: {job.table.path}}}\n"
    )
    verify_command(file, json=True, shallow=False)
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert report["first_violation"] is None
    append(job, 0, [2])
    with pytest.raises(typer.Exit) as exit_info:
        verify_command(file, json=True, shallow=True)
    assert exit_info.value.exit_code == 1
    report = json.loads(capsys.readouterr().out)
    assert report["first_violation"]["kind"] == "twice"
    assert (report["first_violation"]["partition"], report["first_violation"]["offset"]) == (0, 2)


def test_the_command_exits_with_3_when_something_is_not_proven_and_names_the_remedy(
    job: JobSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = without_offsets(job)
    started(plain)
    file = tmp_path / "orders.yaml"
    file.write_text(
        f"job: orders\n"
        f"log:\n  kafka: {{bootstrap: '{kafka_of(job).bootstrap}', topics: [{job.log.topics[0]}]}}\n"
        f"decode: json\nschema: {{id: long}}\ntable:\n  delta: {{path: {job.table.path}}}\nplace: none\n"
    )
    with pytest.raises(typer.Exit) as exit_info:
        verify_command(file, json=True)
    assert exit_info.value.exit_code == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["verdict"]) == (False, "not_proven")
    [check] = [item for item in report["checks"] if item["verdict"] == "not_proven"]
    assert "place: none" in check["not_proven"][0]["remedy"]
    assert check["name"] == "offsets"
    with pytest.raises(typer.Exit):
        verify_command(file)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.strip().startswith("to prove it: ") for line in lines)
    assert lines[-1] == "not proven"


def test_the_text_has_a_line_per_check_and_the_first_violation(job: JobSpec) -> None:
    filled(job)
    append(job, 0, [2])
    printed = io.StringIO()
    print_report(verify(job), Console(file=printed, width=200))
    lines = printed.getvalue().splitlines()
    assert [line.split()[0] for line in lines[1:7]] == ["✓", "✓", "✗", "✗", "✓", "✓"]
    assert f"{job.log.topics[0]}/0 offset 2" in lines[-2]
    assert lines[-1] == "failed"
