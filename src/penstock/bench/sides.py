"""Two ways through the same topic, ours and the baseline's: each run is a process that prints what it measured last."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from penstock.bench.meters import BenchResult, Meter, Say, Spent, median
from penstock.embedded.broker import Cluster
from penstock.embedded.sample import create_topic, produce_values
from penstock.engine.loop import Loop, Retries, Stop
from penstock.engine.round import open_rounds
from penstock.environment import Environment
from penstock.errors import TransientError
from penstock.events import Listener, NullListener
from penstock.job.spec import JobSpec, SparkSpec
from penstock.spark.jars import JarSet
from penstock.spark.session import open_spark
from penstock.tables.kind import Loading, LoadWish, SaveMode
from penstock.tables.registry import kind_of, load_job

PARTITIONS = 4
SIDE_SECONDS_MAX = 1800
MIB = 1024 * 1024
SOURCE_TUNING = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 * MIB),
    "kafka.fetch.max.bytes": str(16 * MIB),
    "kafka.receive.buffer.bytes": str(MIB),
    "kafka.request.timeout.ms": "15000",
    "kafka.default.api.timeout.ms": "20000",
}
"""Fetch settings of Spark's Kafka source, so that the baseline is not slowed by Kafka's defaults."""
SIDES = ("penstock", "baseline")
_TOPIC = "bench"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared: a side is run as `python -m MODULE SIDE BOOTSTRAP TOPIC ARGUMENTS... FOLDER`."""

    bench: str
    module: str
    baseline_name: str
    records: int
    arguments: Sequence[object]


Fill = Callable[[str, str], None]
"""Sends all records to a bootstrap and a topic, which has `PARTITIONS` partitions."""


def in_turn(values: Iterable[bytes]) -> Fill:
    """Values without keys, spread over the partitions."""
    return lambda bootstrap, topic: produce_values(bootstrap, topic, values, PARTITIONS)


def compare_sides(of: Comparison, fill: Fill, rounds: int, say: Say, **extra: object) -> BenchResult:
    """Fill a topic once, then let both sides read it `rounds` times, in turn.

    Sides that print an `outcome` must all print the same one; it is part of the result.
    """
    outcomes: list[dict[str, Any]] = []
    spent: dict[str, list[Spent]] = {side: [] for side in SIDES}
    memory = dict.fromkeys(SIDES, 0)
    further: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Cluster.start(Path(folder) / "kafka") as cluster,
    ):
        create_topic(cluster.bootstrap, _TOPIC, PARTITIONS)
        fill(cluster.bootstrap, _TOPIC)
        for number in range(1, rounds + 1):
            for side in SIDES:
                told = [cluster.bootstrap, _TOPIC, *map(str, of.arguments), f"{folder}/{side}-{number}"]
                measured = run_side(of.module, side, *told)
                spent[side].append(Spent(measured["wall_s"], measured["cpu_s"]))
                memory[side] = max(memory[side], round(measured["memory_bytes"] / MIB))
                outcomes.append(measured.get("outcome", {}))
                for name, content in measured.get("further", {}).items():
                    further.setdefault(name, []).append(content)
                say(f"round {number} {side}: {measured['wall_s']} s wall, {measured['cpu_s']} s CPU")
                check_same(side, outcomes)
    medians_further = {name: round(statistics.median(found), 3) for name, found in further.items()}
    shown = {"memory_mib": memory, "rounds": rounds, **outcomes[0], **medians_further, **extra}
    medians = (median(spent["penstock"]), of.baseline_name, median(spent["baseline"]))
    return BenchResult(of.bench, of.records, *medians, shown)


def check_same(side: str, outcomes: Sequence[Mapping[str, Any]]) -> None:
    """Raise if the latest outcome, that of `side`, is not the first."""
    if outcomes[-1] != outcomes[0]:
        raise TransientError(
            f"the {side} side of the benchmark has another outcome than the first side",
            detail=f"{dict(outcomes[-1])} instead of {dict(outcomes[0])}",
        )


def run_side(module: str, *arguments: str) -> dict[str, Any]:
    """What `python -m MODULE ARGUMENTS...` printed last."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SIDE_SECONDS_MAX, check=False)
    if done.returncode:
        raise TransientError(f"{module} {arguments[0]} failed", detail=done.stderr[-1500:])
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


# inside the process of a side


def measure(side: Callable[[Path], None], folder: Path, memory: AbstractContextManager[object] | None = None) -> Spent:
    """Run the side twice, each time in an empty folder, and measure the second: a running job, not the JVM's start."""
    for part in ("warm-up", "measured"):
        (folder / part).mkdir(parents=True)
    side(folder / "warm-up")
    with memory or nullcontext():
        meter = Meter()
        side(folder / "measured")
        return meter.spent()


def open_side_spark(side: str, baseline: SparkSpec) -> SparkSession:
    """Each side as its user would have it: `penstock run` starts Spark so for a job without `sql:`."""
    if side == "penstock":
        return open_spark(SparkSpec(), "bench penstock", light=True)
    return open_spark(baseline, "bench", (JarSet.DELTA, JarSet.KAFKA_SOURCE))


def check_rows(side: str, found: int, expected: int) -> None:
    """End the process of a side that has not written everything once."""
    if found != expected:
        raise SystemExit(f"{side} wrote {found} rows of {expected}")


def tell(spent: Spent, memory_bytes: int, **more: object) -> None:
    """Print what `compare_sides` reads."""
    print(json.dumps({**asdict(spent), "memory_bytes": memory_bytes, **more}))


def written_job(folder: Path, text: str) -> JobSpec:
    job_path = folder / "job.yaml"
    job_path.write_text(text)
    return load_job(job_path)


def loader(spark: SparkSession, job: JobSpec) -> Callable[[Path], object]:
    """Loads a file, or those of a folder, into the table of the job."""
    kind = kind_of(job)
    assert isinstance(kind, Loading)
    return lambda path: kind.load(job, LoadWish((str(path),), SaveMode.APPEND), spark, Environment())


def run_job(spark: SparkSession, folder: Path, text: str, listener: Listener | None = None) -> None:
    """Our way: the loop of `run --once`."""
    job = written_job(folder, text)
    told = listener or NullListener()
    environment = Environment(listener=told)
    Loop(lambda: open_rounds(job, spark, environment), once=True, stop=Stop(), retries=Retries(0), listener=told).run()


def run_to_end(writer: DataStreamWriter, folder: Path, table: Path | None = None) -> None:
    """Let a streaming query take everything that is there."""
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    writer.start(None if table is None else str(table)).awaitTermination()


def kafka_source(spark: SparkSession, bootstrap: str, topic: str) -> DataStreamReader:
    """Spark's own way to read the topic from its beginning."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**SOURCE_TUNING, **options)
