"""The same export with `format: delta`: a Delta table per type, each with its own position (RULES E1, E2)."""

from __future__ import annotations

import json
from collections import Counter

import polars as pl
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.watch.verify import verify
from tests.support.exports import ExportPipe, event, type_of
from tests.support.kafka import Produce, Topics
from tests.support.pipes import CrashError, crash_at


def offsets_of(export: ExportPipe, *names: str) -> Counter[tuple[int, int]]:
    """How often each (partition, offset) is in the tables of these types."""
    counter: Counter[tuple[int, int]] = Counter()
    for name in names:
        counter.update(pl.read_delta(str(export.root / name)).select("kafka_partition", "kafka_offset").rows())
    return counter


def test_a_table_without_rows_gets_no_commits_and_is_up_to_date(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name, export="format: delta")
    produce(name, [event("A", 0), event("B", 1)])
    export.run_to_end()
    versions = DeltaTable(str(export.root / "B")).version()
    produce(name, [event("A", number) for number in range(2, 6)])
    export.run_to_end()
    assert DeltaTable(str(export.root / "B")).version() == versions
    assert export.global_positions() == [6]
    produce(name, [event("B", 6)])
    export.run_to_end()
    assert offsets_of(export, "A", "B") == Counter((0, number) for number in range(7))
    assert verify(export.job).ok


@pytest.mark.parametrize(
    ("format", "step"),
    [("delta", "type_committed"), ("delta", "committed")]
    + [("parquet", step) for step in ("type_committed", "renaming", "renamed", "committed")],
)
def test_a_crash_between_the_commits_of_types_and_of_the_job_doubles_nothing(
    export: ExportPipe, topic: Topics, produce: Produce, format: str, step: str
) -> None:
    name = topic()
    export.describe(name, export=f"format: {format}")
    produce(name, [event("AB"[number % 2], number) for number in range(6)])
    export.run_to_end()
    produce(name, [event("AB"[number % 2], number) for number in range(6, 12)])
    with pytest.raises(CrashError):
        export.run_to_end(at_step=crash_at(step))
    produce(name, [event("AB"[number % 2], number) for number in range(12, 15)])
    export.run_to_end()
    assert sorted(export.offsets("A") + export.offsets("B")) == list(range(15))
    assert export.global_positions() == [15]
    assert verify(export.job).ok


def test_bad_records_are_not_lost_by_a_crash_between_the_commits_of_types_and_of_the_job(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name, types=[type_of("A"), type_of("B")], export="format: delta")
    produce(name, [event("A", 0), event("A", 1, id="one"), event("B", 2), event("A", 3)])
    with pytest.raises(CrashError):
        export.run_to_end(at_step=crash_at("type_committed"))
    export.run_to_end()
    assert offsets_of(export, "A", "B") == Counter((0, number) for number in (0, 2, 3))
    assert export.quarantined() == [(0, 1)]
    assert verify(export.job).ok


def test_compact_and_vacuum_go_through_the_tables_of_all_types(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name, export="format: delta")
    for number in range(3):
        produce(name, [event("AB"[item], 2 * number + item) for item in range(2)])
        if number == 1:
            with pytest.raises(CrashError):
                export.run_to_end(at_step=crash_at("staged"))
        export.run_to_end()
    done = json.loads(command("compact", str(export.path), "--json"))
    assert (done["files_removed"], done["files_added"], done["rows"]) == (6, 2, 6)
    vacuumed = json.loads(command("vacuum", str(export.path), "--json"))
    # Those that the crash left: the merged ones are still there for time travel.
    assert len(vacuumed["deleted"]) == 2
    assert offsets_of(export, "A", "B") == Counter((0, number) for number in range(6))
    assert verify(export.job).ok


def command(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.output
