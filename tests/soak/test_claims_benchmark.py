"""`python -m benchmarks claims` prints sizes, times and traffic, and the same for a consumer group."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from benchmarks.__main__ import app


def claims_json(*arguments: str) -> Any:
    """The JSON object that the benchmark prints."""
    done = CliRunner().invoke(app, ["claims", *arguments, "--json"])
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    return json.loads(done.stdout)


def test_the_benchmark_measures_both_sides_and_prints_one_json_object() -> None:
    printed = claims_json("--members", "3", "--partitions", "12", "--heartbeat-seconds", "0.5")
    assert (printed["bench"], printed["members"], printed["partitions"]) == ("claims", 3, 12)
    assert printed["heartbeat_seconds"] == 0.5
    # A join and a claim for each member and a target, at least.
    assert printed["records"] >= 7
    for name in (
        "stable_s",
        "cpu_s",
        "records_per_s",
        "steady_cores",
        "broker_cores",
        "startup_s",
        "join_s",
        "takeover_s",
    ):
        assert printed[name] > 0, name
    assert printed["startup_records"] >= 0
    assert printed["stable_s"] == printed["penstock"]["wall_s"]
    assert "consumer group" in printed["baseline"]["name"]
    assert printed["baseline"]["wall_s"] > 0
    assert printed["ratio_wall"] > 0
    assert printed["ratio_cpu"] > 0
    # A member sends a heartbeat twice per interval.
    assert printed["records_per_s"] <= 3 * 4 * 1.5


def test_members_may_be_processes_of_their_own() -> None:
    printed = claims_json("--members", "3", "--partitions", "12", "--heartbeat-seconds", "0.5", "--processes")
    assert (printed["processes"], printed["members"]) == (True, 3)
    assert printed["records"] >= 7
    assert printed["penstock"]["wall_s"] > 0
    assert printed["baseline"]["wall_s"] > 0
