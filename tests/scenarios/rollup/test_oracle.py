"""Random histories of rollups against plain Python: `pytest -k 'seed7 and drop'` replays one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.tables.rollup import aggregate, close_task, decide, pages, publishing
from tests.scenarios.rollup.oracle import check_published, compared, expected_windows, order_of
from tests.scenarios.rollup.rollups import Rollup, expected
from tests.scenarios.rollup.walk import Walk
from tests.support.memory_output import MemoryCluster
from tests.support.tries import tries

INTERVALS = ("1m", "10m", "1h")
PUBLISH = "publish: {topic: rollups, format: json, buckets: 3}\n"
ENDS = ("first", "last", "mean")
SEEDS = range(tries(1))
"""Each seed is another history."""


def random_walk(
    folder: Path,
    seed: int,
    policy: str,
    publish: bool,
    monkeypatch: pytest.MonkeyPatch,
    pointless: Sequence[int] | None = None,
) -> Walk:
    """A history up to its last record. `pointless`: the partitions of three that have no points; None: random."""
    rng = random.Random(f"{seed}/{policy}/{publish}")
    monkeypatch.setattr(decide, "CLOSE_ROWS_MAX", rng.choice((10, 100, 1000)))
    monkeypatch.setattr(close_task, "MERGED_ROWS_MAX", rng.choice((3, 20, 1000)))
    for module in (aggregate, close_task):
        monkeypatch.setattr(module, "MERGE_ROWS_MIN", rng.choice((2, 1000)))
    monkeypatch.setattr(publishing, "RECORDS_PER_TRANSACTION", rng.choice((1, 3, 100)))
    monkeypatch.setattr(publishing, "ROWS_PER_TURN_MAX", rng.choice((20, 1000)))
    monkeypatch.setattr(pages, "PAGE_ROWS_MAX", rng.choice((1, 5, 1000)))
    grace = "update_grace: 30d\n" if policy == "update" or rng.random() < 0.5 else ""
    more = f"late: {policy}\n{grace}aggregates: [first, last, mean]\n"
    rollup = Rollup(folder, more + (PUBLISH if publish else ""), windows_asked=", ".join(INTERVALS))
    partitions = rng.randint(1, 4) if pointless is None else 3
    if pointless is None:
        pointless = rng.sample(range(partitions), k=rng.randrange(partitions))
    walk = Walk(rng, rollup, partitions, pointless=frozenset(pointless))
    walk.steps(60)
    return walk


@pytest.mark.parametrize("publish", [False, True], ids=["kept", "published"])
@pytest.mark.parametrize("policy", ["drop", "update"])
@pytest.mark.parametrize("seed", SEEDS, ids=[f"seed{item}" for item in SEEDS])
def test_every_point_matches_the_oracle_under_random_steps(
    seed: int, policy: str, publish: bool, tmp_path: Path, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = random_walk(tmp_path, seed, policy, publish, monkeypatch)
    rollup = walk.rollup
    walk.run_to_end()
    check(walk, policy)
    walk.finish()
    check(walk, policy)
    if publish:
        check_published(cluster.topics["rollups"], rollup.rows())
    if policy == "update":
        everything = ((point.series, point.at, point.value) for point in walk.points)
        assert rollup.windows() == expected(everything, INTERVALS), "no point is left out, however late it came"


@pytest.mark.parametrize("pointless", [(0,), (1, 2)], ids=["first", "others"])
@pytest.mark.parametrize("seed", SEEDS, ids=[f"seed{item}" for item in SEEDS])
def test_every_point_matches_the_oracle_with_partitions_without_points(
    seed: int, pointless: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = random_walk(tmp_path, seed, "drop", False, monkeypatch, pointless)
    walk.run_to_end()
    check(walk, "drop")
    walk.finish()
    check(walk, "drop")


def check(walk: Walk, policy: str) -> None:
    """Between closes: closed, late and open points follow from the order of commits."""
    rollup = walk.rollup
    result = expected_windows(
        walk.points, order_of(rollup.folder / "windows_partials"), INTERVALS, update=policy == "update"
    )
    rows = compared(rollup.rows(), ("count", "sum", "min", "max", *ENDS))
    assert rows == {key: pytest.approx(values) for key, values in result.windows.items()}
    assert rollup.late() == result.late
    for interval in INTERVALS:
        closed = sum(values["count"] for key, values in rows.items() if key[1] == interval)
        assert closed + result.late[interval] + result.open[interval] == len(walk.points)
    assert rollup.status()["points"] == len(walk.points)
    assert "violated" not in rollup.verdicts(values=True).values()
