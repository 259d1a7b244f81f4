"""Any kind of table is proved in the same frame: several tables of one job, some behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli.verify import verify as verify_command
from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.state import DeltaPartition, Totals
from penstock.logs.log import Partition
from penstock.proof.findings import Check, Verdict, Violation, ViolationKind
from penstock.proof.frame import prove
from penstock.proof.numbers import CommittedSlice, TopicIncarnations
from penstock.proof.subject import QUARANTINE_PLACE, DataFile, Depth, RowSource, Sample, Subject, examined
from penstock.storage import open_storage
from penstock.tables.registry import kind_of
from tests.support.memory_log import MemoryLog
from tests.support.small_table import small_job

ZERO = Partition("orders", "id", 0)
LOG = MemoryLog({ZERO: dict.fromkeys(range(10), b"{}")})
SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
SMALL_PASSES = Depth(offsets_per_pass_max=3)
PLACE = {name: name for name in SCHEMA.names}


def of_type(folder: Path, name: str, offsets: Sequence[int | None], end: int | None = None) -> RowSource:
    """A file of one type of an export; `end` is the position of the type, if it is not that of the job."""
    (folder / name).mkdir(parents=True)
    rows = [{"topic": "orders", "partition": 0, "offset": offset} for offset in offsets]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), folder / name / "part.parquet")
    files = [DataFile("part.parquet", len(offsets))]
    source = RowSource(open_storage(str(folder / name), {}), files, PLACE, SCHEMA, name)
    return examined(replace(source, ends=None if end is None else {ZERO: end}))


def exported(folder: Path, totals: Totals, types: Sequence[RowSource], position: int = 8) -> Subject:
    """An export that has read `[0, position)`."""
    bad = RowSource(open_storage(str(folder), {}), (), QUARANTINE_PLACE, QUARANTINE_SCHEMA)
    return Subject(
        small_job("127.0.0.1:1", "orders", folder),
        9,
        {ZERO: DeltaPartition(position=position, token=1, origin=0, totals=totals)},
        {},
        TopicIncarnations((ZERO,), fingerprints={"orders": topic_fingerprint("id")}),
        bad,
        sources=tuple(types),
        rows_written={source.name: source.rows for source in types},
    )


def proved(subject: Subject, depth: Depth = SMALL_PASSES) -> Mapping[str, Check]:
    return {check.name: check for check in prove(subject, depth, lambda _: LOG).checks}


def test_rows_of_all_types_together_prove_every_record_of_the_log(tmp_path: Path) -> None:
    both = [of_type(tmp_path, "a", [0, 2, 4, 6]), of_type(tmp_path, "b", [7, 5, 3, 1])]
    checks = proved(exported(tmp_path, Totals(read=8, written=8), both))
    assert {check.verdict for check in checks.values()} == {Verdict.PROVEN}
    assert list(checks) == ["totals", "slices", "rows", "offsets", "log", "records"]
    assert checks["offsets"].facts == {"offsets": 8}


def test_a_record_in_two_types_or_in_none_is_named(tmp_path: Path) -> None:
    both = [of_type(tmp_path, "a", [0, 2, 4, 6]), of_type(tmp_path, "b", [7, 4, 3, 1])]
    offsets = proved(exported(tmp_path, Totals(read=8, written=8), both))["offsets"]
    assert offsets.violation == Violation("orders", 0, 4, ViolationKind.TWICE)


@pytest.mark.parametrize(("offsets", "end"), [([0, 2, 4, 6, 8], None), ([0, 2, 4, 6, 9], 9)])
def test_rows_beyond_the_position_of_their_type_are_named(tmp_path: Path, offsets: list[int], end: int | None) -> None:
    both = [of_type(tmp_path, "a", offsets, end), of_type(tmp_path, "b", [7, 5, 3, 1])]
    violation = proved(exported(tmp_path, Totals(read=8, written=8), both))["offsets"].violation
    assert violation == Violation("orders", 0, offsets[-1], ViolationKind.BEYOND_POSITION)


def test_deferred_records_of_a_type_that_lags_are_counted_and_rows_beyond_its_position_are_named(
    tmp_path: Path,
) -> None:
    totals = Totals(read=8, written=6, deferred=2)
    both = [of_type(tmp_path, "a", [0, 2], end=4), of_type(tmp_path, "b", [7, 5, 3, 1])]
    checks = proved(exported(tmp_path, totals, both))
    assert {check.verdict for check in checks.values()} == {Verdict.PROVEN}
    wrong = [of_type(tmp_path / "wrong", "a", [0, 6], end=4), both[1]]
    violation = proved(exported(tmp_path, totals, wrong))["offsets"].violation
    assert violation == Violation("orders", 0, 6, ViolationKind.BEYOND_POSITION)


def test_slices_of_the_job_log_are_checked_apart_from_what_types_made_of_their_records(tmp_path: Path) -> None:
    both = [of_type(tmp_path, "a", [0, 2, 4, 6]), of_type(tmp_path, "b", [7, 5, 3, 1])]
    subject = exported(tmp_path, Totals(read=8, written=8), both)
    whole = {ZERO: [CommittedSlice(0, 8, Totals(read=8, written=8))]}
    checks = proved(replace(subject, job_slices=(subject.states, whole)))
    assert {check.verdict for check in checks.values()} == {Verdict.PROVEN}
    half = {ZERO: [CommittedSlice(0, 6, Totals(read=6, written=6))]}
    assert proved(replace(subject, job_slices=(subject.states, half)))["slices"].verdict is Verdict.VIOLATED


def test_counts_that_are_wrong_are_found_by_the_totals_and_by_the_log(tmp_path: Path) -> None:
    one = [of_type(tmp_path, "a", range(7))]
    checks = proved(exported(tmp_path, Totals(read=7, written=7), one))
    assert [name for name, check in checks.items() if check.verdict is Verdict.VIOLATED] == [
        "totals",
        "offsets",
        "records",
    ]


def test_rows_without_a_place_are_counted_and_not_proven(tmp_path: Path) -> None:
    """Also if values cannot be compared."""
    one = [replace(of_type(tmp_path, "a", range(8)), place=None)]
    checks = proved(exported(tmp_path, Totals(read=8, written=8), one), Depth(values=Sample(None)))
    not_proven = {name for name, check in checks.items() if check.verdict is Verdict.NOT_PROVEN}
    assert not_proven == {"offsets", "values"}


def test_progress_is_reported_for_files_and_for_offsets(tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    one = [of_type(tmp_path, "a", range(8))]
    depth = Depth(progress=lambda *step: steps.append(step), offsets_per_pass_max=3)
    proved(exported(tmp_path, Totals(read=8, written=8), one), depth)
    assert ("files", 1, 1) in steps
    assert any(step.startswith("offsets of") and done == total == 8 for step, done, total in steps)


def test_verify_all_requires_values(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--all needs --values"):
        verify_command(tmp_path / "job.yaml", every=True)


def test_only_exports_are_rebuilt(tmp_path: Path) -> None:
    job = small_job("127.0.0.1:1", "orders", tmp_path)
    with pytest.raises(UserError, match="is for exports"):
        kind_of(job).rebuild(job, MemoryLog({}), Environment())
