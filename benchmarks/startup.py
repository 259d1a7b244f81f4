"""`bench startup`: how long a process takes to know its positions on a table with much history, against little.

Both tables are made by real commits of a job, with rows. Start-up is opening the table, reading the state of its
partitions and planning the next batch, measured as a whole process from its start to its end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa

from benchmarks.apart import run_apart
from benchmarks.meters import BenchResult, Meter, Report, Spent, median
from penstock.environment import new_batch_id
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import Counts
from penstock.flow.write.names import staged_name
from penstock.job.spec import FlushPolicy
from penstock.lake.delta.compact import compact
from penstock.lake.delta.opening import open_or_create, open_table
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import DeltaLog
from penstock.lake.proposal import Proposal, SlicePart, StartPart
from penstock.logs.log import Bounds, Partition, Slice
from penstock.plan import PartitionInput, PlanTerms, plan

PARTITIONS = tuple(Partition("bench", "benchTopicId", number) for number in range(4))
COMMITS_FEW = 10
COMPACT_EVERY = 200
BASELINE_NAME = f"the same with {COMMITS_FEW} commits of history"
_JOB = "bench-startup"
_SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
_TARGET_BYTES = 128 * 1024 * 1024


def bench_startup(commits: int, rounds: int, report: Report) -> BenchResult:
    """Compare start-up after `commits` commits with start-up after ten. A ratio of 1 means: history costs nothing."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        tables = {"many": (Path(folder) / "many", commits), "few": (Path(folder) / "few", COMMITS_FEW)}
        spent: dict[str, list[Spent]] = {name: [] for name in tables}
        for path, count in tables.values():
            report(f"making {count:,} commits")
            make_history(path, count)
        for number in range(1, rounds + 1):
            for name, (path, _) in tables.items():
                meter = Meter()
                run_apart(start_up, path)
                spent[name].append(meter.spent())
                report(f"round {number} {name}: {spent[name][-1].wall_s} s")
    return BenchResult("startup", commits, median(spent["many"]), BASELINE_NAME, median(spent["few"]))


def make_history(path: Path, commits: int) -> None:
    """Commit one row at a time, as a job at the head of its log does, and compact now and then, as its owner does."""
    spec = TablePlace(str(path))
    table = open_or_create(spec, _JOB, _SCHEMA, "add")
    table.commit(Proposal(_JOB, new_batch_id(), tuple(StartPart(partition, 0, 1) for partition in PARTITIONS)))
    for number in range(commits):
        turn, place = divmod(number, len(PARTITIONS))
        table.commit(Proposal(_JOB, new_batch_id(), (_part(table, PARTITIONS[place], turn),)))
        if number % COMPACT_EVERY == COMPACT_EVERY - 1:
            compact(table, _TARGET_BYTES)


def _part(table: DeltaLog, partition: Partition, offset: int) -> SlicePart:
    batch_id = new_batch_id()
    writer = StagedWriter(
        WriteOptions(table_url=table.spec.path, schema=_SCHEMA),
        lambda: staged_name(partition.topic_id, partition.number, offset, offset + 1, batch_id),
        partition.topic,
        partition.number,
    )
    writer.write(pa.RecordBatch.from_pylist([{"partition": partition.number, "offset": offset}], schema=_SCHEMA))
    piece = Slice(partition, offset, offset + 1, offset)
    return SlicePart(piece, 1, Counts(read=1, written=1), writer.finish())


def start_up(path: Path) -> None:
    """What a process does before its first batch, without the log's answers: those do not depend on history."""
    table = open_table(TablePlace(str(path)), _JOB)
    state = table.state(PARTITIONS)
    table.handle.history(20)
    positions = {partition: state.of(partition).position or 0 for partition in PARTITIONS}
    lanes = tuple(PartitionInput(item, position, Bounds(0, position + 1), None) for item, position in positions.items())
    plan(lanes, PlanTerms(FlushPolicy(), "fail", 100.0, 0.0), new_batch_id())
