"""The quarantine of an export: listed as any other, and replayed into types and days, each record once."""

from __future__ import annotations

import json

from typer.testing import CliRunner, Result

from penstock.cli.quarantine import app
from penstock.engine.replay import ReplayReport, replay
from penstock.environment import Environment
from penstock.tables.export.upkeep import vacuum
from penstock.tables.kind import CompactRequest
from penstock.tables.registry import kind_of
from penstock.watch.verify import verify
from tests.support.exports import ExportPipe, event, type_of
from tests.support.kafka import Produce, Topics

FIXED_SCHEMA = "{type: string, at: string, id: long, extra: string}"


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
    assert sorted(item["offset"] for item in listed["newest"]) == [1, 2, 3, 4, 6]
    assert f"{name}/0/1" in quarantine("list", job).stdout
    shown = quarantine("show", job, f"{name}/0/1").stdout
    assert 'its type "B" is not known' in shown
    assert event("B", 1) in shown
    assert "trace = (1 B) 7" in shown
    [row] = json.loads(quarantine("show", job, f"{name}/0/2", "--json").stdout)
    assert row["value"] == {"text": "not JSON"}

    # The job file as it is now decides: a column more, and a new type.
    types = [type_of("A", schema=FIXED_SCHEMA), type_of("B")]
    export.describe(name, types=types, on=strict)
    report = replay(export.job, spark=export.spark)
    assert report == ReplayReport(runs=1, replayed=3, still_bad=2, remaining=2)
    assert export.rows("A", "id", "extra") == [(0, None), (3, "x"), (4, "y"), (5, None)]
    assert [str(day) for (day,) in export.rows("A", "day")] == ["2026-03-01", "2026-03-01", "2026-03-02", "2026-03-01"]
    assert export.offsets("B") == [1]
    assert export.quarantined() == [(0, 2), (0, 6)]
    assert verify(export.job).ok

    export.describe(name, types=[*types, type_of("C")], on=strict)
    export.run_to_end()
    assert replay(export.job, spark=export.spark) == ReplayReport(runs=1, replayed=1, still_bad=1, remaining=1)
    assert export.offsets("C") == [6]
    assert (
        kind_of(export.job).compact(export.job, CompactRequest(all_days=True), Environment(), None).files_removed == 2
    )
    assert vacuum(export.table).deleted == ()
    assert (export.offsets("A"), export.offsets("B"), export.offsets("C")) == ([0, 3, 4, 5], [1], [6])
    assert verify(export.job).ok
