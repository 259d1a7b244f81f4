"""`bench ingest`: a JSON topic into a Delta table by day, us against Structured Streaming, in turn, medians."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from penstock.bench.cpu import Spent
from penstock.bench.ingest_sides import BASELINE_NAME, SIDES
from penstock.bench.result import BenchResult, median
from penstock.bench.sides import run_side
from penstock.embedded.broker import Cluster
from penstock.embedded.sample import Sample, create_topic, produce_sample

PARTITIONS = 4
MODULE = "penstock.bench.ingest_sides"
_TOPIC = "web_requests"

Say = Callable[[str], None]


def bench_ingest(records: int, rounds: int, say: Say, bad_share: float = 0.0) -> BenchResult:
    """Produce the records once, then let both sides ingest them `rounds` times, in turn.

    Of bad records, the share `bad_share`, we write none as a row, and the baseline each as one with nulls.
    """
    sample = Sample(records, bad_every=round(1 / bad_share) if bad_share else 0)
    rows = {"penstock": records - sample.bad_records, "baseline": records}
    spent: dict[str, list[Spent]] = {side: [] for side in SIDES}
    memory: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        root = Path(folder)
        with Cluster.start(root / "kafka") as cluster:
            say(f"producing {records:,} records")
            _fill(cluster.bootstrap, _TOPIC, sample)
            for number in range(1, rounds + 1):
                for side in SIDES:
                    measured = run_side(
                        MODULE, side, cluster.bootstrap, _TOPIC, str(rows[side]), str(root / f"{side}-{number}")
                    )
                    spent[side].append(Spent(measured["wall_s"], measured["cpu_s"]))
                    memory[side] = max(memory.get(side, 0), sum(measured["memory_bytes"].values()))
                    say(f"round {number} {side}: {measured['wall_s']} s wall, {measured['cpu_s']} s CPU")
    return BenchResult(
        "ingest",
        records,
        median(spent["penstock"]),
        BASELINE_NAME,
        median(spent["baseline"]),
        {
            "memory_mib": {side: round(size / 2**20) for side, size in memory.items()},
            "rounds": rounds,
            "bad_records": sample.bad_records,
        },
    )


def _fill(bootstrap: str, topic: str, sample: Sample) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    produce_sample(bootstrap, topic, sample, PARTITIONS)
