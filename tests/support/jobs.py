"""Job files for tests: numbered records, so that a table can be compared with its log offset by offset."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from tests.support.quarantine_url import quarantine_folders

KILLED = -9

NUMBERED_JOB = """\
job: numbered
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]{kafka}}}
decode: json
schema: {{number: long, day: string}}
columns: {{partition: kafka.partition, offset: kafka.offset}}
table:
  delta: {{path: {table}, partition_by: [day]}}
flush: {{{flush}}}
on: {{bad_share: 1, {on}}}
limits: {{transient_retries: {retries}, shutdown: 30s}}
spark: {{{master}conf: {{spark.driver.memory: 512m}}}}
{more}"""


def numbered_job(
    folder: Path,
    bootstrap: str,
    topic: str,
    kafka: str = "",
    flush: str = "allowed_latency: 100ms",
    on: str = "bad_record: quarantine",
    retries: int = 10,
    more: str = "",
    name: str = "job.yaml",
    master: str = "",
) -> Path:
    """Write a job file for records made by `numbered`; the table is in the same folder. `more` are further sections.

    Partitions get their records at random, so that a batch of one of them may hold any share of the bad ones.
    """
    path = folder / name
    text = NUMBERED_JOB.format(
        bootstrap=bootstrap,
        topic=topic,
        table=json.dumps(str(folder / "table")),
        kafka=f", {kafka}" if kafka else "",
        flush=flush,
        on=on,
        retries=retries,
        more=more,
        master=f'master: "{master}", ' if master else "",
    )
    path.write_text(text)
    return path


def shared_job(
    folder: Path,
    bootstrap: str,
    topic: str,
    client_id: str,
    flush: str = "allowed_latency: 100ms",
    heartbeat: str = "2s",
) -> Path:
    """A job file of one process; all of them write to the table in the folder."""
    return numbered_job(
        folder,
        bootstrap,
        topic,
        kafka=f"group: {topic}",
        flush=flush,
        more=f"claims: {{client_id: {client_id}, heartbeat: {heartbeat}, topic: {topic}_claims}}\n",
        name=f"{client_id}.yaml",
    )


def numbered(numbers: Iterable[int]) -> list[bytes]:
    """Good records; every thirteenth is bad."""
    return [
        b'{"number": "thirteen"}' if number % 13 == 12 else b'{"number": %d, "day": "d%d"}' % (number, number % 3)
        for number in numbers
    ]


def offsets_in(table: Path) -> Counter[tuple[int, int]]:
    """How often each (partition, offset) stands in a table."""
    if not (table / "_delta_log").exists():
        return Counter()
    return Counter(pl.read_delta(str(table)).select("partition", "offset").rows())


def assert_every_record_once(table: Path, places: Iterable[tuple[int, int]]) -> None:
    """Each produced record is in the table or in quarantine, once, and nothing else is."""
    expected = Counter(places)
    result = sum(map(offsets_in, (table, *quarantine_folders(table))), Counter[tuple[int, int]]())
    missing, extra = expected - result, result - expected
    assert not missing and not extra, f"missing {sorted(missing)[:5]}, too many {sorted(extra)[:5]}"


def holds(table: Path) -> int:
    """How many records are in a table and its quarantine, without reading them."""
    return sum(
        pl.scan_delta(str(path)).select(pl.len()).collect().item()
        for path in (table, *quarantine_folders(table))
        if (path / "_delta_log").exists()
    )
