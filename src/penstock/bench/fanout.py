"""`bench fanout`: one topic of many types into Parquet by type and day, us against foreachBatch, in turn, medians."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from penstock.bench.cpu import Spent
from penstock.bench.fanout_sides import BASELINE_NAME, SIDES
from penstock.bench.result import BenchResult, median
from penstock.bench.sides import run_side
from penstock.embedded.broker import Cluster
from penstock.embedded.sample import create_topic
from penstock.embedded.sample_events import EventSample, produce_events

PARTITIONS = 4
MODULE = "penstock.bench.fanout_sides"
_TOPIC = "events"

Say = Callable[[str], None]


def bench_fanout(records: int, types: int, rounds: int, say: Say) -> BenchResult:
    """Produce the events once, then let both sides export them `rounds` times, in turn."""
    spent: dict[str, list[Spent]] = {side: [] for side in SIDES}
    memory: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        root = Path(folder)
        with Cluster.start(root / "kafka") as cluster:
            say(f"producing {records:,} events of {types} types")
            create_topic(cluster.bootstrap, _TOPIC, PARTITIONS)
            produce_events(cluster.bootstrap, _TOPIC, EventSample(records, types), PARTITIONS)
            for number in range(1, rounds + 1):
                for side in SIDES:
                    measured = run_side(
                        MODULE,
                        side,
                        cluster.bootstrap,
                        _TOPIC,
                        str(records),
                        str(types),
                        str(root / f"{side}-{number}"),
                    )
                    spent[side].append(Spent(measured["wall_s"], measured["cpu_s"]))
                    memory[side] = max(memory.get(side, 0), measured["memory_bytes"])
                    say(f"round {number} {side}: {measured['wall_s']} s wall, {measured['cpu_s']} s CPU")
    return BenchResult(
        "fanout",
        records,
        median(spent["penstock"]),
        BASELINE_NAME,
        median(spent["baseline"]),
        {"types": types, "memory_mib": {side: round(size / 2**20) for side, size in memory.items()}, "rounds": rounds},
    )
