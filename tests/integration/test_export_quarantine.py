"""The quarantine of an export: looked at as any other, and what to do instead of a replay is said."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.quarantine import app
from penstock.engine.replay import replay
from penstock.errors import UserError
from penstock.verify import verify
from tests.exports import ExportPipe, event, type_of
from tests.kafka import Produce, Topics


def quarantine(*arguments: str, fails: bool = False) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code != 0) == fails, result.output
    return result


def test_records_of_an_export_are_listed_and_shown_and_a_replay_says_what_to_do_instead(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name, job = topic(), str(export.path)
    export.describe(name, types=[type_of("A")])
    assert "empty" in quarantine("list", job).stdout
    assert json.loads(quarantine("replay", job, "--json").stdout)["replayed"] == 0
    produce(name, [event("A", 0), event("B", 1), "not JSON", event("A", 3, id="x")], key="k", headers=[("trace", b"7")])
    export.run_to_end()
    listed = json.loads(quarantine("list", job, "--json").stdout)
    assert (listed["job"], listed["rows"]) == ("export", 3)
    assert sorted(each["offset"] for each in listed["newest"]) == [1, 2, 3]
    assert f"{name}/0/1" in quarantine("list", job).stdout
    shown = quarantine("show", job, f"{name}/0/1").stdout
    assert 'its type "B" is not known' in shown
    assert event("B", 1) in shown
    assert "trace = (1 B) 7" in shown
    assert quarantine("show", job, f"{name}/0/2", "--raw").stdout == "not JSON"

    refused = quarantine("replay", job, fails=True).exception
    assert isinstance(refused, UserError)
    assert "cannot be replayed yet" in refused.primary
    assert "start: beginning" in refused.hint
    assert len(export.quarantined()) == 3

    # The first half of the hint, followed.
    export.describe(name, types=[type_of("A"), type_of("B", start="beginning")])
    export.run_to_end()
    assert (export.offsets("A"), export.offsets("B")) == ([0], [1])
    assert verify(export.job).ok


def test_a_replay_of_an_export_is_refused_before_anything_is_opened(export: ExportPipe) -> None:
    export.describe("no-such-topic")
    with pytest.raises(UserError, match="cannot be replayed yet"):
        replay(export.job, spark=export.spark)
    assert not export.root.exists()
