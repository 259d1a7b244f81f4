"""`kill -9` of the real process at every step of a keyed batch: start again, and every key has its newest row."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

from penstock.failpoints import COMPACT_STEPS
from tests.support.jobs import KILLED
from tests.support.kafka import Produce, Topics
from tests.support.pipes import run_in_process
from tests.support.processes import PenstockProcess, command_json, penstock, run_once
from tests.support.waiting import wait_until

STEPS = ("writing", "runs_staged", "merged", "checked", "tombstones_written", "committed")
JOB = """\
job: keyed
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}
decode: json
schema: {{number: long, value: long, gone: boolean, seq: long}}
table:
  keyed: {{path: "{path}", row_keys: [number], sequence: seq, delete: gone, buckets: 2, chunk_rows: 5000}}
flush: {{allowed_latency: 100ms}}
{more}spark: {{conf: {{spark.driver.memory: 512m}}}}
"""
ROWS = 6000


class Oracle:
    """The record with the greatest sequence, by key."""

    def __init__(self) -> None:
        self._newest: dict[int, dict[str, Any]] = {}
        self._sequence = 0

    def records(self, count: int) -> list[str]:
        """Inserts, updates of earlier keys and deletes, each newer than all before."""
        result = []
        for place in range(count):
            self._sequence += 1
            number = self._sequence // 2 if place % 3 else self._sequence // 7
            record = {"number": number, "value": self._sequence, "gone": place % 11 == 5, "seq": self._sequence}
            self._newest[number] = record
            result.append(json.dumps(record))
        return result

    @property
    def rows(self) -> dict[int, int]:
        return {number: item["value"] for number, item in self._newest.items() if not item["gone"]}


def rows_in(table: Path) -> dict[int, int]:
    if not (table / "_delta_log").exists():
        return {}
    frame = pl.read_delta(str(table))
    rows = dict(frame.select("number", "value").rows())
    assert len(rows) == len(frame), "a key is there twice"
    return rows


def test_killed_at_every_step_of_a_batch_and_of_a_compaction(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    """Each step kills one process; the next process recovers from its state, and is killed at the next step."""
    name, table, oracle = topic(partitions=2), tmp_path / "table", Oracle()
    job = tmp_path / "job.yaml"
    job.write_text(JOB.format(bootstrap=bootstrap, topic=name, path=table, more=""))
    # So many rows that batches mark a few of them.
    produce(name, oracle.records(ROWS))
    run_in_process(job, spark)
    for step in STEPS:
        before = rows_in(table)
        produce(name, oracle.records(120))
        assert run_once(job, failpoint=f"{step}:kill") == KILLED, step
        assert rows_in(table) == (oracle.rows if step == "committed" else before), step
    run_in_process(job, spark)
    assert rows_in(table) == oracle.rows
    for step in COMPACT_STEPS:
        produce(name, oracle.records(30))
        run_in_process(job, spark)
        with penstock("compact", str(job), failpoint=f"{step}:kill") as process:
            assert process.exit_code() == KILLED, step
        assert rows_in(table) == oracle.rows, step
    command_json("vacuum", str(job))
    assert rows_in(table) == oracle.rows
    assert any('"deletionVector"' in entry.read_text() for entry in (table / "_delta_log").glob("*.json"))
    assert command_json("verify", str(job))["ok"]
    assert {row["number"]: row["value"] for row in spark.read.format("delta").load(str(table)).collect()} == oracle.rows


def test_processes_share_a_keyed_table_and_one_dies_in_a_merge(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    """Records of a key are in all partitions, so that the processes change the same buckets (RULES K1)."""
    name, table, oracle = topic(partitions=4), tmp_path / "table", Oracle()

    def job(client_id: str) -> str:
        path = tmp_path / f"{client_id}.yaml"
        more = f"claims: {{client_id: {client_id}, heartbeat: 2s, topic: {name}_claims}}\n"
        path.write_text(JOB.format(bootstrap=bootstrap, topic=name, path=table, more=more))
        return str(path)

    def all_there() -> bool:
        return rows_in(table) == oracle.rows

    with penstock("run", job("first"), "--json") as first:
        produce(name, oracle.records(200))
        wait_until(all_there, words=lambda: first.last_words)
        with penstock("run", job("second"), "--json", failpoint="merged:kill") as second:
            won(second, 2)
            produce(name, oracle.records(200))
            assert second.exit_code() == KILLED, second.last_words
        wait_until(all_there, words=lambda: first.last_words)
        with penstock("run", job("third"), "--json") as third:
            won(third, 2)
            for _ in range(5):
                produce(name, oracle.records(100))
            wait_until(all_there, words=lambda: f"{first.last_words}{third.last_words}")
            for process in (first, third):
                process.send(signal.SIGTERM)
                assert process.exit_code() == 0, process.last_words
    assert command_json("verify", job("first"))["ok"]


def won(process: PenstockProcess, count: int) -> None:
    """Wait until the process has won so many claims."""
    for _ in range(count):
        process.wait_for("claim won")
