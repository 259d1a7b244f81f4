"""`python -m benchmarks NAME`: side by side with what a user would pick instead."""

from __future__ import annotations

import json as json_text
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.claims.compare import ClaimsBench, bench_claims
from benchmarks.claims.virtual import virtual_cost
from benchmarks.fanout import bench_fanout
from benchmarks.hot import EXECUTORS, bench_hot
from benchmarks.ingest import bench_ingest
from benchmarks.keyed.compare import bench_keyed
from benchmarks.keyed.growth import bench_growth
from benchmarks.lookups import bench_lookups
from benchmarks.meters import BenchResult
from benchmarks.rollup import bench_rollup
from benchmarks.startup import bench_startup
from benchmarks.wal import bench_wal
from penstock.cli.tables import table
from penstock.errors import PenstockError

app = typer.Typer(
    help="Benchmarks: Penstock and its alternative, in one run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Rounds = Annotated[int, typer.Option(min=1, help="How often each side runs; the median counts.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@app.command()
def ingest(
    records: Annotated[int, typer.Option(min=1, help="Records in the topic.")] = 1_000_000,
    rounds: Rounds = 3,
    bad_share: Annotated[float, typer.Option(min=0.0, max=0.5, help="The share of bad records.")] = 0.0,
    json: Json = False,
) -> None:
    """A JSON topic into a Delta table by day, against Spark Structured Streaming."""
    _print(bench_ingest(records, rounds, _report, bad_share), json)


@app.command()
def startup(
    commits: Annotated[int, typer.Option(min=10, help="Commits of history.")] = 10_000,
    rounds: Rounds = 5,
    json: Json = False,
) -> None:
    """Start-up on a table with a long history, against one with ten commits."""
    _print(bench_startup(commits, rounds, _report), json)


@app.command()
def claims(
    members: Annotated[int, typer.Option(min=1, help="Members of the group.")] = 50,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions that they share.")] = 1000,
    heartbeat_seconds: Annotated[float, typer.Option(min=0.5, help="The heartbeat interval.")] = 10.0,
    processes: Annotated[bool, typer.Option("--processes", help="Every member in a process of its own.")] = False,
    virtual: Annotated[bool, typer.Option("--virtual", help="The protocol alone, in virtual time.")] = False,
    json: Json = False,
) -> None:
    """Time to fair shares, coordination traffic and start-up of many members, against a Kafka consumer group."""
    if virtual:
        print(json_text.dumps({"bench": "claims", **virtual_cost(members, partitions)}))
        return
    _print(bench_claims(ClaimsBench(members, partitions, heartbeat_seconds, processes), _report), json)


@app.command()
def hot(
    records: Annotated[int, typer.Option(min=1_000, help="Records in the one partition.")] = 100_000,
    cores: Annotated[int, typer.Option(min=2, help="Cores of Spark, `local[CORES]`.")] = 2,
    rounds: Rounds = 3,
    json: Json = False,
) -> None:
    """One hot partition and a flow that keeps a core busy: several cores, against one."""
    _print(bench_hot("hot", records, cores, rounds, _report), json)


@app.command()
def cluster(
    records: Annotated[int, typer.Option(min=1_000, help="Records in the topic.")] = 100_000,
    executors: Annotated[int, typer.Option(min=2, help="Executors, of one core each.")] = 2,
    rounds: Rounds = 3,
    json: Json = False,
) -> None:
    """The same flow on executors of a standalone cluster, warm: several executors, against one."""
    _print(bench_hot("cluster", records, executors, rounds, _report, EXECUTORS), json)


@app.command()
def fanout(
    types: Annotated[int, typer.Option(min=1, help="Event types in the topic.")] = 18,
    records: Annotated[int, typer.Option(min=1, help="Records in the topic.")] = 1_000_000,
    rounds: Rounds = 3,
    json: Json = False,
) -> None:
    """One topic of many event types into Parquet by type and day, against foreachBatch with a write per type."""
    _print(bench_fanout(records, types, rounds, _report), json)


@app.command()
def keyed(
    rows: Annotated[int, typer.Option(min=1_000, help="Records in the topic.")] = 5_000_000,
    update_share: Annotated[float, typer.Option(min=0.0, max=0.9, help="The share of them that are updates.")] = 0.2,
    batch: Annotated[int, typer.Option(min=1_000, help="Records of a batch.")] = 500_000,
    rounds: Rounds = 1,
    growth: Annotated[bool, typer.Option("--growth", help="Also: batches into tables of 1, 4 and 16 sizes.")] = False,
    json: Json = False,
) -> None:
    """A table with one row for each key, against MERGE INTO; and a load of files that is repeated."""
    result = bench_keyed(rows, update_share, batch, rounds, _report)
    if growth:
        result = replace(result, extra={**result.extra, "growth": bench_growth(update_share, batch, _report)})
    _print(result, json)


@app.command()
def lookups(
    rows: Annotated[int, typer.Option(min=20_000, help="Rows in the table, of 1,000 devices.")] = 2_000_000,
    json: Json = False,
) -> None:
    """Rows by their keys out of a table that has keys: files read and time, against the same table without its keys."""
    files, answers = bench_lookups(rows, _report)
    if not json:
        print(f"lookups: {rows:,} rows in {files} files")
    shown = [asdict(answer) for answer in answers]
    _print_rows({"bench": "lookups", "rows": rows, "files": files, "answers": shown}, "answers", json)


@app.command()
def wal(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each case runs.")] = 3.0,
    folder: Annotated[Path | None, typer.Option(help="On which disk (default: temporary files).")] = None,
    json: Json = False,
) -> None:
    """Acknowledged appends of a WAL, compared with the disk's own rate of fsyncs."""
    rates = [asdict(item) for item in bench_wal(seconds, _report, folder)]
    _print_rows({"bench": "wal", "rates": rates}, "rates", json)


@app.command()
def rollup(
    records: Annotated[int, typer.Option(min=1, help="Records in the topic, each with three fields.")] = 2_000_000,
    series: Annotated[int, typer.Option(min=1, help="Series in the topic: fields of hosts.")] = 16_000,
    rounds: Rounds = 3,
    json: Json = False,
) -> None:
    """Telegraf metrics into windows of 1m, 10m, 1h and 24h, against Spark Structured Streaming."""
    _print(bench_rollup(records, series, rounds, _report), json)


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(result: BenchResult, json: bool) -> None:
    if json:
        print(json_text.dumps(result.as_json()))
        return
    print(f"{result.bench}: {result.records:,}")
    for name, spent in (("penstock", result.penstock), (result.baseline_name, result.baseline)):
        print(f"  {spent.wall_s:8.2f} s wall {spent.cpu_s:8.2f} s CPU  {name}")
    shown = result.as_json()
    print(f"  ratio {shown['ratio_wall']} wall, {shown['ratio_cpu']} CPU")
    for name, content in result.extra.items():
        print(f"  {name}: {content}")


def _print_rows(result: dict[str, Any], rows: str, json: bool) -> None:
    if json:
        print(json_text.dumps(result))
    else:
        shown = [[str(content) for content in row.values()] for row in result[rows]]
        Console(highlight=False).print(table(list(result[rows][0]), shown))


if __name__ == "__main__":
    try:
        app()
    except PenstockError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
