"""The quarantine of an export: looked at as any other, and replayed into types and days, each record once."""

from __future__ import annotations

import json
from datetime import date

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.quarantine import app
from penstock.engine.replay import ReplayReport, replay
from penstock.environment import Environment
from penstock.proof.sources import Sample
from penstock.tables.export.compact import compact
from penstock.tables.export.vacuum import vacuum
from penstock.tables.quarantine.chunks import ReplayOptions
from penstock.verify import verify
from tests.exports import ExportPipe, event, type_of
from tests.kafka import Produce, Topics
from tests.pipes import CrashError, crash_at

MENDED = "{type: string, at: string, id: long, extra: string}"


def quarantine(*arguments: str, fails: bool = False) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code != 0) == fails, result.output
    return result


def test_records_of_an_export_are_listed_shown_and_replayed_into_their_types_and_days(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name, job = topic(), str(export.path)
    strict = "bad_record: quarantine, new_column: quarantine"
    export.describe(name, types=[type_of("A")], on=strict)
    assert "empty" in quarantine("list", job).stdout
    assert json.loads(quarantine("replay", job, "--json").stdout)["replayed"] == 0
    values = [
        event("A", 0),
        event("B", 1),
        "not JSON",
        event("A", 3, extra="x"),
        event("A", 4, day=1, extra="y"),
        event("A", 5),
        event("C", 6),
    ]
    produce(name, values, key="k", headers=[("trace", b"7")])
    export.run_to_end()
    listed = json.loads(quarantine("list", job, "--json").stdout)
    assert (listed["job"], listed["rows"]) == ("export", 5)
    assert sorted(each["offset"] for each in listed["newest"]) == [1, 2, 3, 4, 6]
    assert f"{name}/0/1" in quarantine("list", job).stdout
    shown = quarantine("show", job, f"{name}/0/1").stdout
    assert 'its type "B" is not known' in shown
    assert event("B", 1) in shown
    assert "trace = (1 B) 7" in shown
    assert quarantine("show", job, f"{name}/0/2", "--raw").stdout == "not JSON"

    # The job file as it is now decides: a column more, a type from now on, and one that reads the log again by itself.
    types = [type_of("A", schema=MENDED), type_of("B", start="now"), type_of("C", start="beginning")]
    export.describe(name, types=types, on=strict)
    report = replay(export.job, spark=export.spark)
    assert report == ReplayReport(runs=1, replayed=3, still_bad=1, left_to_log=1, remaining=2)
    assert export.rows("A", "id", "extra") == [(0, None), (3, "x"), (4, "y"), (5, None)]
    assert [str(day) for (day,) in export.rows("A", "day")] == ["2026-03-01", "2026-03-01", "2026-03-02", "2026-03-01"]
    assert export.offsets("B") == [1]
    assert export.quarantined() == [(0, 2), (0, 6)]
    assert verify(export.job).ok

    export.run_to_end()
    assert export.offsets("C") == [6]
    again = replay(export.job, spark=export.spark)
    assert again == ReplayReport(still_bad=1, left_to_log=1, remaining=2)
    assert export.offsets("C") == [6]
    assert compact(export.table, all_days=True).files_removed == 2
    assert vacuum(export.table).deleted == ()
    assert (export.offsets("A"), export.offsets("B"), export.offsets("C")) == ([0, 3, 4, 5], [1], [6])
    assert verify(export.job).ok


def test_a_replay_of_an_export_that_dies_is_finished_first_by_whoever_comes_next(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name, types=[type_of("A")], on="bad_record: quarantine, new_column: quarantine")
    produce(name, [event("A", 0), *(event("A", number, extra="x") for number in range(1, 5))])
    export.run_to_end()
    export.describe(name, types=[type_of("A", schema=MENDED)])
    everything = {(0, offset): 1 for offset in range(5)}
    one_by_one = ReplayOptions(run_rows_max=1)

    for step, rows in [("replay_staged", 1), ("entry_written", 1), ("renaming", 2)]:
        with pytest.raises(CrashError):
            replay(export.job, None, one_by_one, environment=Environment(reach=crash_at(step)), spark=export.spark)
        assert len(export.offsets("A")) == rows
        assert verify(export.job).ok
        # A start of the job is enough to finish what a replay owes.
        export.run_to_end()
        assert export.everywhere() == everything
    with pytest.raises(CrashError):
        replay(
            export.job,
            None,
            one_by_one,
            environment=Environment(reach=crash_at("replay_committed")),
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

    # What nobody knew is of a type now; one type's table does not answer while the first replay runs.
    types = [type_of("A", schema=MENDED), type_of("B", start="now")]
    export.describe(name, types=types, export="format: delta", on=strict)
    log = export.root / "A" / "_delta_log"
    log.rename(log.with_name("away"))
    log.write_text("in the way")
    waiting = replay(export.job, spark=export.spark)
    assert waiting == ReplayReport(runs=1, replayed=1, still_bad=1, waiting=2, remaining=3)
    log.unlink()
    log.with_name("away").rename(log)
    assert export.rows("B", "id", "day") == [(2, date(2026, 3, 2))]

    one_by_one = ReplayOptions(run_rows_max=1)
    for step, rows in [("replay_staged", 1), ("entry_written", 1), ("type_landed", 2)]:
        with pytest.raises(CrashError):
            replay(export.job, None, one_by_one, environment=Environment(reach=crash_at(step)), spark=export.spark)
        assert len(export.rows("A", "id")) == rows
        assert verify(export.job).ok
    assert replay(export.job, spark=export.spark) == ReplayReport(runs=1, replayed=1, still_bad=1, remaining=1)
    assert export.rows("A", "id", "extra") == [(0, None), (1, "x"), (3, "y")]
    assert export.quarantined() == [(0, 4)]
    assert replay(export.job, spark=export.spark) == ReplayReport(still_bad=1, remaining=1)
    assert verify(export.job, values=Sample(None)).ok
