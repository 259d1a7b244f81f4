"""Two ways through the same topic, ours and the baseline's: each run is a process that measures itself."""

from __future__ import annotations

import statistics
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from benchmarks.apart import run_apart
from benchmarks.meters import BenchResult, Meter, PeakMemory, Report, Spent, median
from penstock.embedded.broker import Cluster
from penstock.embedded.sample import create_topic, produce_values
from penstock.engine.loop import Loop, Retries
from penstock.engine.round import open_rounds
from penstock.environment import Environment
from penstock.errors import TransientError
from penstock.events import Listener, NullListener
from penstock.job.spec import JobSpec, SparkSpec
from penstock.spark.jars import JarSet
from penstock.spark.session import open_spark
from penstock.tables.kind import Loading, SaveMode
from penstock.tables.registry import kind_of, load_job

TOPIC = "bench"
PARTITIONS = 4
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
PLACE = ("kafka_topic", "kafka_partition", "kafka_offset")
"""The columns in which rows of ours carry their place; those of the baseline have them too."""

Fill = Callable[[str], None]
"""Sends all records to `TOPIC`, at a bootstrap."""
Way = Callable[[SparkSession, str, Path], None]
"""Carries all records of `TOPIC`, at a bootstrap, into an empty folder."""
ReadResult = Callable[[SparkSession, str, Path], Mapping[str, Any]]
"""What a side, by its name, has left in its folder; ends the process unless that is everything, once.

An `outcome` must be the same of all runs; of `further` numbers of ours the medians count.
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared, sent to the processes of the sides."""

    bench: str
    records: int
    penstock: Way
    baseline: Way
    baseline_name: str
    baseline_spark: SparkSpec
    read_result: ReadResult
    same_spark: bool = False
    """Ours has the session of the baseline too, instead of one as `penstock run` has it for a job without `sql:`."""

    def open_spark(self, side: str) -> SparkSession:
        if side == "penstock" and not self.same_spark:
            return open_spark(SparkSpec(), "bench penstock", light=True)
        return open_spark(self.baseline_spark, f"bench {side}", (JarSet.DELTA, JarSet.KAFKA_SOURCE))


def in_turn(values: Iterable[bytes], partitions: int = PARTITIONS) -> Fill:
    """Values without keys, spread over the partitions."""
    return lambda bootstrap: produce_values(bootstrap, TOPIC, values, partitions)


@contextmanager
def filled_topic(fill: Fill, partitions: int = PARTITIONS) -> Iterator[tuple[str, Path]]:
    """The bootstrap of a broker whose topic has all records, and a folder for what is made of them."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Cluster.start(Path(folder) / "kafka") as cluster,
    ):
        create_topic(cluster.bootstrap, TOPIC, partitions)
        fill(cluster.bootstrap)
        yield cluster.bootstrap, Path(folder)


def compare_sides(of: Comparison, fill: Fill, rounds: int, report: Report, **extra: object) -> BenchResult:
    """Fill a topic once, then let both sides read it `rounds` times, in turn."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    outcomes: list[dict[str, Any]] = []
    with filled_topic(fill) as (bootstrap, folder):
        for number in range(1, rounds + 1):
            for side in SIDES:
                measured = run_apart(measure_side, of, side, bootstrap, folder / f"{side}-{number}")
                runs[side].append(measured)
                outcomes.append(measured.get("outcome", {}))
                report(f"round {number} {side}: {measured['wall_s']} s wall, {measured['cpu_s']} s CPU")
                check_same(side, outcomes)
    ours, theirs = (median([Spent(item["wall_s"], item["cpu_s"]) for item in side]) for side in runs.values())
    memory = {side: max(round(run["memory_bytes"] / MIB) for run in of_side) for side, of_side in runs.items()}
    further = [run.get("further", {}) for run in runs["penstock"]]
    medians = {name: round(statistics.median(run[name] for run in further), 3) for name in further[0]}
    shown = {"memory_mib": memory, "rounds": rounds, **outcomes[0], **medians, **extra}
    return BenchResult(of.bench, of.records, ours, of.baseline_name, theirs, shown)


def check_same(side: str, outcomes: Sequence[Mapping[str, Any]]) -> None:
    """Raise if the latest outcome, that of `side`, is not the first."""
    if outcomes[-1] != outcomes[0]:
        raise TransientError(
            f"the {side} side of the benchmark has another outcome than the first side",
            detail=f"{dict(outcomes[-1])} instead of {dict(outcomes[0])}",
        )


# inside the process of a side


def measure_side(of: Comparison, side: str, bootstrap: str, folder: Path) -> dict[str, Any]:
    """Run the side twice, each time in an empty folder, and measure the second: a running job, not the JVM's start."""
    spark = of.open_spark(side)
    run = of.penstock if side == "penstock" else of.baseline
    warm_up, measured = folder / "warm-up", folder / "measured"
    for part in (warm_up, measured):
        part.mkdir(parents=True)
    run(spark, bootstrap, warm_up)
    with PeakMemory() as memory:
        meter = Meter()
        run(spark, bootstrap, measured)
        spent = meter.spent()
    result = of.read_result(spark, side, measured)
    spark.stop()
    return {**asdict(spent), "memory_bytes": memory.peak_bytes, **result}


def check_rows(side: str, rows: int, expected: int) -> None:
    """End the process of a side that has not written everything once."""
    if rows != expected:
        raise SystemExit(f"{side} wrote {rows} rows of {expected}")


def written_job(folder: Path, text: str) -> JobSpec:
    job_path = folder / "job.yaml"
    job_path.write_text(text)
    return load_job(job_path)


def loader(spark: SparkSession, job: JobSpec) -> Callable[[Path], object]:
    """Loads a file, or those of a folder, into the table of the job."""
    kind = kind_of(job)
    assert isinstance(kind, Loading)
    return lambda path: kind.load(job, [str(path)], SaveMode.APPEND, spark, Environment())


def run_job(spark: SparkSession, folder: Path, text: str, listener: Listener | None = None) -> None:
    """Our way: the loop of `run --once`."""
    job = written_job(folder, text)
    events = listener or NullListener()
    environment = Environment(listener=events)
    Loop(lambda: open_rounds(job, spark, environment), True, threading.Event(), Retries(0), events).run()


def run_to_end(writer: DataStreamWriter, folder: Path, table: Path | None = None) -> None:
    """Let a streaming query take everything that is there."""
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    writer.start(None if table is None else str(table)).awaitTermination()


def place_columns() -> list[Column]:
    """Topic, partition and offset of Spark's Kafka source under the names of `PLACE`."""
    return [F.col(name.removeprefix("kafka_")).alias(name) for name in PLACE]


def kafka_source(spark: SparkSession, bootstrap: str) -> DataStreamReader:
    """Spark's own way to read the topic from its beginning."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**SOURCE_TUNING, **options)
