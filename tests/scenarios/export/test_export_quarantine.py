"""The quarantine of an export: listed as any other, and replayed into types and days, each record once."""

from __future__ import annotations

from datetime import date

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.quarantine import app
from penstock.engine.replay import ReplayReport, replay
from penstock.environment import Environment
from penstock.errors import PenstockError
from penstock.proof.subject import Sample
from penstock.quarantine.replay import ReplayOptions
from penstock.watch.verify import Verdict, verify
from tests.support.exports import ExportPipe, event, type_of
from tests.support.kafka import Produce, Topics
from tests.support.pipes import CrashError, crash_at

FIXED_SCHEMA = "{type: string, at: string, id: long, extra: string}"


def quarantine(*arguments: str, fails: bool = False) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code != 0) == fails, result.output
    return result


def test_a_killed_replay_of_an_export_is_finished_first_by_the_next_process(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name, types=[type_of("A")], on="bad_record: quarantine, new_column: quarantine")
    produce(name, [event("A", 0), *(event("A", number, extra="x") for number in range(1, 5))])
    export.run_to_end()
    export.describe(name, types=[type_of("A", schema=FIXED_SCHEMA)])
    everything = {(0, offset): 1 for offset in range(5)}
    one_by_one = ReplayOptions(run_rows_max=1)

    for step, rows in [("replay_staged", 1), ("type_committed", 1), ("renaming", 2)]:
        with pytest.raises(CrashError):
            replay(export.job, None, one_by_one, environment=Environment(at_step=crash_at(step)), spark=export.spark)
        assert len(export.offsets("A")) == rows
        assert verify(export.job).verdict is (Verdict.PROVEN if step == "replay_staged" else Verdict.NOT_PROVEN)
        # A start of the job finishes an interrupted replay.
        export.run_to_end()
        assert export.everywhere() == everything
    with pytest.raises(CrashError):
        replay(
            export.job,
            None,
            one_by_one,
            environment=Environment(at_step=crash_at("replay_committed")),
            spark=export.spark,
        )
    assert export.everywhere() == everything | {(0, 3): 2}
    assert verify(export.job).ok
    report = replay(export.job, None, one_by_one, spark=export.spark)
    assert report == ReplayReport(runs=1, replayed=1)
    assert export.offsets("A") == [0, 1, 2, 3, 4]
    assert export.quarantined() == []
    assert verify(export.job).ok


def test_records_are_replayed_into_the_delta_tables_of_their_types_once_after_any_crash(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    strict = "bad_record: quarantine, new_column: quarantine"
    export.describe(name, types=[type_of("A")], export="format: delta", on=strict)
    produce(name, [event("A", 0), event("A", 1, extra="x"), event("B", 2, day=1), event("A", 3, extra="y"), "not JSON"])
    export.run_to_end()
    assert (export.rows("A", "id"), len(export.quarantined())) == ([(0,)], 4)

    # Unknown records have a type now; the table of one type cannot be read during the first replay.
    types = [type_of("A", schema=FIXED_SCHEMA), type_of("B")]
    export.describe(name, types=types, export="format: delta", on=strict)
    log = export.root / "A" / "_delta_log"
    log.rename(log.with_name("away"))
    log.write_text("in the way")
    with pytest.raises(PenstockError):
        replay(export.job, spark=export.spark)
    assert len(export.quarantined()) == 4
    log.unlink()
    log.with_name("away").rename(log)

    of_type_b = ReplayOptions(error_contains="is not known")
    assert replay(export.job, None, of_type_b, spark=export.spark) == ReplayReport(runs=1, replayed=1, remaining=3)
    assert export.rows("B", "id", "day") == [(2, date(2026, 3, 2))]

    one_by_one = ReplayOptions(run_rows_max=1)
    for step, rows in [("replay_staged", 1), ("replay_begun", 1), ("type_committed", 2)]:
        with pytest.raises(CrashError):
            replay(export.job, None, one_by_one, environment=Environment(at_step=crash_at(step)), spark=export.spark)
        assert len(export.rows("A", "id")) == rows
        assert verify(export.job).ok
    assert replay(export.job, spark=export.spark) == ReplayReport(runs=1, replayed=1, still_bad=1, remaining=1)
    assert export.rows("A", "id", "extra") == [(0, None), (1, "x"), (3, "y")]
    assert export.quarantined() == [(0, 4)]
    assert replay(export.job, spark=export.spark) == ReplayReport(still_bad=1, remaining=1)
    assert verify(export.job, values=Sample(None)).ok


def test_a_field_of_few_records_of_a_type_waits_in_quarantine_until_it_is_replayed(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    """As often in another type it is a column; the first records of a type fix its columns, rare fields too."""
    name = topic()
    export.describe(name, types=[type_of("A"), type_of("B"), type_of("C", schema="infer")], on="new_column: add")
    many = [event("A", number) for number in range(1_999)]
    odd = [event("A", 1_999, colour="red"), event("B", 0, colour="blue"), event("C", 0, colour="green")]
    produce(name, [*many, *odd])
    export.run_to_end()
    assert (len(export.offsets("A")), export.rows("B", "colour"), export.rows("C", "colour")) == (
        1_999,
        [("blue",)],
        [("green",)],
    )
    assert "colour" not in str(export.table.logs.columns_of("A"))
    assert verify(export.job, values=Sample(None)).ok
    assert replay(export.job, spark=export.spark).replayed == 1
    assert ("red",) in export.rows("A", "colour")
    assert verify(export.job).ok
