"""`verify` proves an export against its log while it runs, after it crashed, and finds what is wrong."""

from __future__ import annotations

from penstock.watch.verify import Check, Sample, Verdict, VerifyReport, verify
from tests.support.exports import ExportPipe, event
from tests.support.kafka import Produce, Topics
from tests.unit.tables.export.damaged_root import rewritten

CHECKS = ["totals", "slices", "rows", "offsets", "log", "records"]


def failed(report: VerifyReport) -> list[str]:
    return [check.name for check in report.checks if not check.ok]


def check_of(report: VerifyReport, name: str) -> Check:
    return next(check for check in report.checks if check.name == name)


def mixed(count: int, start: int = 0) -> list[str]:
    """Types A, B and C in turn over three days; every tenth record is not JSON, every eleventh of an unknown type."""

    def one(number: int) -> str:
        if number % 10 == 9:
            return "not JSON"
        return event("?" if number % 11 == 10 else "ABC"[number % 3], number, day=number // 3 % 3)

    return [one(number) for number in range(start, start + count)]


def test_every_record_is_proved_to_be_in_one_file_or_in_quarantine_or_counted(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic(partitions=2)
    export.describe(name, route="unknown: drop")
    produce(name, mixed(60), partition=0)
    produce(name, mixed(40), partition=1)
    export.run_to_end()
    report = verify(export.job)
    assert failed(report) == []
    assert [check.name for check in report.checks] == CHECKS
    # Of 60 records 6 are bad, of 40 there are 4. Unknown are 10, 21, 32, 43 and 54; of the first 40 only three.
    assert check_of(report, "rows").facts == {"rows": 100 - 10 - 8, "quarantine": 10}
    assert check_of(report, "offsets").facts == {"offsets": 100 - 8}
    assert check_of(report, "records").facts == {"records": 100, "offsets_deleted": 0}
    assert failed(verify(export.job, offsets_per_pass_max=7)) == []


def test_values_types_and_days_are_compared_with_the_log(export: ExportPipe, topic: Topics, produce: Produce) -> None:
    name = topic(partitions=2)
    export.describe(name, route="unknown: drop")
    produce(name, mixed(60), partition=0)
    produce(name, mixed(40), partition=1)
    export.run_to_end()
    report = verify(export.job, values=Sample(None))
    assert report.ok
    assert check_of(report, "values").facts == {"compared": 100, "of_offsets": 100, "seed": 0}
    path = sorted(export.root.glob("[!_]*/day=*/*.parquet"))[0]
    rewritten(path, lambda rows: [{**rows[0], "id": rows[0]["id"] + 1}, *rows[1:]])
    report = verify(export.job, values=Sample(None))
    assert check_of(report, "values").verdict is Verdict.VIOLATED
    assert check_of(report, "offsets").ok
