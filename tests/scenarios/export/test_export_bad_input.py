"""Bad input of an export: each record is filed, in quarantine with its reason, or counted; nothing leaves the root."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import UserError
from penstock.job.faults import JobFileError
from penstock.tables.registry import load_job
from penstock.watch.verify import verify
from tests.cases.export_bad_input import (
    CLOCK,
    DAYS,
    KAFKA_MS,
    NO_ROW,
    NOT_AN_OBJECT,
    OUTSIDE,
    TOPIC,
    TYPES,
    UNKNOWN_TYPE,
    WITHOUT_TYPE,
    between,
    deep_export,
    nothing_escaped,
    of_type,
    reasons,
    totals,
)
from tests.support.exports import ExportPipe, event, export_job, type_of
from tests.support.kafka import Produce, Topics


@pytest.fixture
def deep(tmp_path: Path, bootstrap: str, spark: SparkSession) -> ExportPipe:
    return deep_export(tmp_path, bootstrap, spark)


def test_records_that_are_dropped_by_policy_are_counted(
    deep: ExportPipe, tmp_path: Path, topic: Topics, produce: Produce
) -> None:
    """Unknown types and tombstones are dropped; what is broken is never dropped."""
    name = topic(config=TOPIC)
    sent = [*UNKNOWN_TYPE, *WITHOUT_TYPE, *NOT_AN_OBJECT, *NO_ROW, *OUTSIDE]
    produce(name, between([*(value for value, _ in sent), None]), timestamp_ms=KAFKA_MS)
    deep.describe(name, types=TYPES, route="unknown: drop", days=DAYS, on="tombstone: filter, new_column: ignore")
    deep.run_to_end(clock=CLOCK)
    dropped = len(UNKNOWN_TYPE) + len(WITHOUT_TYPE)
    broken = range(dropped, len(sent))
    assert sorted(reasons(deep)) == [(0, 2 * number + 1) for number in broken]
    assert deep.everywhere() == Counter(
        [(0, 2 * number) for number in range(len(sent) + 2)] + [(0, 2 * number + 1) for number in broken]
    )
    counted = totals(deep)
    assert counted.conserved
    assert (counted.filtered, counted.quarantined) == (dropped + 1, len(broken))
    assert nothing_escaped(deep, tmp_path, "A", "B")
    assert verify(deep.job).ok


def test_a_row_of_a_day_that_is_over_is_filed_in_that_day(export: ExportPipe, topic: Topics, produce: Produce) -> None:
    name = topic(config=TOPIC)
    export.describe(name)
    produce(name, [event("A", 0), event("A", 1, day=1), event("A", 2, day=2), event("A", 3)])
    export.run_to_end()
    produce(name, [event("A", 4, day=3), event("A", 5)])
    export.run_to_end()
    result = [(number, str(day)) for number, day in export.rows("A", "id", "day")]
    first = "2026-03-01"
    assert result == [(0, first), (1, "2026-03-02"), (2, "2026-03-03"), (3, first), (4, "2026-03-04"), (5, first)]
    assert export.files("A")[:2] == [f"A/day={first}/0.3.parquet", f"A/day={first}/0.5.parquet"]
    assert verify(export.job).ok


def test_a_job_that_is_to_stop_at_a_bad_record_writes_nothing_of_the_batch(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic(config=TOPIC)
    produce(name, [event("A", 0), of_type("../x"), event("B", 2)])
    export.describe(name, on="bad_record: fail")
    with pytest.raises(UserError, match=r"offset 1: its type \"../x\" is not known"):
        export.run_to_end()
    assert (export.files(), (export.quarantine / "_delta_log").exists()) == ([], False)
    export.describe(name)
    export.run_to_end()
    assert export.everywhere() == Counter((0, offset) for offset in range(3))


@pytest.mark.parametrize(
    "kind", ["a/b", "..", "../b", "a..b", ".", "/b", "_penstock", '""', "'a b'", '"a\\0"', "'a\\b'"]
)
def test_a_type_that_could_leave_its_folder_is_refused_with_the_job_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(export_job("localhost:1", tmp_path / "root", "t", types=[type_of(kind, values="[x]")]))
    with pytest.raises(JobFileError) as caught:
        load_job(path)
    assert [fault.message for fault in caught.value.faults] == ["cannot be the name of a folder"]
