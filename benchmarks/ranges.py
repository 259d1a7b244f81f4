"""`bench ranges`: one hot partition and a flow that keeps a core busy, by several processes against one.

The group is paused until every process has joined, so that their start is not measured. Each process has one core for
Spark; the machine has to have as many.
"""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack, closing
from pathlib import Path

import polars as pl

from benchmarks.meters import BenchResult, Meter, Say, Spent, median
from benchmarks.sides import TOPIC, filled_topic, in_turn
from penstock.claims.admin.commands import pause, resume
from penstock.claims.admin.log_reader import CoordinatedGroup
from penstock.claims.member.agent import Agent, CoordinationOptions
from penstock.claims.member.membership import MemberOptions
from penstock.embedded.runs import penstock_run, wait_for_event
from penstock.embedded.sample import Sample, web_requests
from penstock.errors import TransientError
from penstock.job.spec import KafkaLogSpec

HEARTBEAT_SECONDS = 2.0
RUN_SECONDS_MAX = 900
JOIN_SECONDS_MAX = 60.0
RANGES = 15
_POLL_SECONDS = 0.25
# Texts are repeated before they are hashed: a core, not the broker, is what a process waits for.
_JOB = """\
job: hot
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [bench], group: {group}}}
decode: json
schema: {{session_id: string, url: string, uuid: string}}
columns: {{partition: kafka.partition, offset: kafka.offset}}
sql: {{select: [partition, offset, uuid, "sha2(repeat(uuid, 4000), 512) as digest"]}}
table:
  delta: {{path: "{table}"}}
claims: {{heartbeat: 2s, topic: {group}_claims, client_id: process-{number}}}
flush: {{allowed_latency: 100ms, min_bytes_per_file: 1, max_messages_per_batch: {size}, max_bytes_per_batch: 1}}
spark: {{master: "local[1,4]"}}
"""


def bench_ranges(records: int, processes: int, rounds: int, say: Say) -> BenchResult:
    """Compare `processes` on one partition with one; a ratio of 2 means twice the throughput."""
    sides: dict[int, list[Spent]] = {processes: [], 1: []}
    with filled_topic(in_turn(web_requests(Sample(records)), 1), 1) as (bootstrap, folder):
        for number in range(1, rounds + 1):
            for count, spent in sides.items():
                spent.append(_run(folder, bootstrap, records, count))
                say(f"round {number} with {count}: {spent[-1].wall_s} s")
    return BenchResult("ranges", records, median(sides[processes]), "one process", median(sides[1]))


def _run(folder: Path, bootstrap: str, records: int, count: int) -> Spent:
    group = f"hot-{uuid.uuid4().hex[:8]}"
    table = folder / group
    size = max(1_000, records // RANGES)
    of = CoordinatedGroup(KafkaLogSpec(bootstrap, (TOPIC,), group=group), group, f"{group}_claims")
    _found(of)
    pause(of, reason="until all have joined", wait_seconds=0.0)
    with ExitStack() as running:
        runs = []
        for number in range(count):
            path = folder / f"{group}-{number}.yaml"
            path.write_text(_JOB.format(bootstrap=bootstrap, group=group, table=table, number=number, size=size))
            runs.append(running.enter_context(penstock_run(path, "--once")))
        for run in runs:
            wait_for_event(run, "group joined")
        meter = Meter()
        resume(of)
        spent = _until_all_are_there(table, records, meter)
        for run in runs:
            run.communicate(timeout=RUN_SECONDS_MAX)
    found = pl.scan_delta(str(table)).select(pl.col("offset").n_unique(), pl.len().alias("rows")).collect().row(0)
    if found != (records, records):
        raise TransientError(f"{found[1]} rows with {found[0]} offsets instead of {records}: the result is not exact")
    return spent


def _until_all_are_there(table: Path, records: int, meter: Meter) -> Spent:
    """Wait for the last commit; the end of a process and of its JVM is not what is measured."""
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while time.monotonic() < deadline:
        if (table / "_delta_log").exists() and pl.scan_delta(str(table)).select(pl.len()).collect().item() >= records:
            return meter.spent()
        time.sleep(_POLL_SECONDS)
    raise TransientError(f"{records} records did not arrive in {RUN_SECONDS_MAX} s")


def _found(of: CoordinatedGroup) -> None:
    """Make the group known by a member that joins, wants nothing, and leaves."""
    agent = Agent(of.spec, MemberOptions(of.group, "founder", HEARTBEAT_SECONDS), CoordinationOptions(of.topic))
    agent.start()
    with closing(agent):
        if not agent.wait(agent.working, JOIN_SECONDS_MAX):
            raise TransientError(f"nobody could join {of.group} in time")
