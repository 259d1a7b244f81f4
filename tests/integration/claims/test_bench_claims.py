"""`bench claims` prints what its readers compare: sizes, times, traffic, and the same by a consumer group."""

from __future__ import annotations

from tests.processes import command_json


def test_it_measures_both_sides_and_prints_one_object() -> None:
    printed = command_json("bench", "claims", "--members", "3", "--partitions", "12", "--heartbeat-seconds", "1")
    assert (printed["bench"], printed["members"], printed["partitions"]) == ("claims", 3, 12)
    assert printed["heartbeat_seconds"] == 1.0
    # A claim for each partition and a join for each member, at least.
    assert printed["records"] >= 15
    for name in ("stable_s", "cpu_s", "records_per_s", "startup_s", "join_s", "takeover_s"):
        assert printed[name] > 0, name
    assert printed["startup_records"] >= 0
    assert printed["stable_s"] == printed["penstock"]["wall_s"]
    assert "consumer group" in printed["baseline"]["name"]
    assert printed["baseline"]["wall_s"] > 0
    assert printed["ratio_wall"] > 0
    assert printed["ratio_cpu"] > 0
    # Twice per interval, a member speaks once at home and once wherever else it holds something: 8 places at most.
    assert printed["records_per_s"] <= 3 * 2 * 8 * 1.5
