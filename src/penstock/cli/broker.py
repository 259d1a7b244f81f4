"""`penstock broker`: a real Kafka on this machine, for development."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.maintenance import Json
from penstock.embedded.broker import Cluster, default_folder
from penstock.embedded.sample import produce_lines
from penstock.errors import UserError

app = typer.Typer(help="A real Kafka on this machine, for development.", no_args_is_help=True)

Folder = Annotated[Path | None, typer.Option(help="Where its data is kept (default: a folder in the user's cache).")]


@app.command()
def start(
    folder: Folder = None,
    brokers: Annotated[int, typer.Option(help="1, or 3 to form a cluster.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the bootstrap address.")] = False,
    json: Json = False,
) -> None:
    """Start Kafka and leave it running; the data of an earlier run is kept."""
    chosen = folder or default_folder()
    cluster = Cluster.start(chosen, brokers)
    if quiet:
        typer.echo(cluster.bootstrap)
    else:
        _print(cluster, chosen, json)


@app.command()
def send(
    topic: Annotated[str, typer.Argument(help="The topic; created if it does not exist.")],
    folder: Folder = None,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions if the topic is created.")] = 1,
    json: Json = False,
) -> None:
    """Send each line of standard input as a record."""
    cluster = _known(folder or default_folder())
    lines = [line.rstrip(b"\r\n") for line in sys.stdin.buffer]
    produce_lines(cluster.bootstrap, topic, lines, partitions)
    sent = {"topic": topic, "records": len(lines)}
    typer.echo(json_text.dumps(sent) if json else f"{len(lines)} records sent to {topic}")


@app.command()
def status(folder: Folder = None, json: Json = False) -> None:
    """Show whether it is running, and its address."""
    chosen = folder or default_folder()
    _print(Cluster.open(chosen), chosen, json)


@app.command()
def stop(folder: Folder = None, json: Json = False) -> None:
    """Stop it; the data is kept."""
    chosen = folder or default_folder()
    cluster = _known(chosen)
    cluster.stop()
    _print(cluster, chosen, json)


def _known(folder: Path) -> Cluster:
    cluster = Cluster.open(folder)
    if cluster is None:
        raise UserError(
            "no embedded broker was ever started here",
            detail=str(folder.absolute()),
            hint="name the folder that it was started with: --folder",
        )
    return cluster


def _print(cluster: Cluster | None, folder: Path, json: bool) -> None:
    brokers = () if cluster is None else cluster.status()
    running = sum(one.running for one in brokers)
    if json:
        content = {
            "running": running > 0,
            "bootstrap": cluster.bootstrap if cluster is not None and running else None,
            "cluster_id": cluster.cluster_id if cluster is not None else None,
            "folder": str(folder.absolute()),
            "brokers": [{"number": one.number, "port": one.port, "pid": one.pid} for one in brokers],
        }
        typer.echo(json_text.dumps(content))
    elif cluster is None or not running:
        typer.echo(f"stopped ({folder.absolute()})")
    else:
        typer.echo(f"running, {running} of {len(brokers)} brokers ({folder.absolute()})")
        typer.echo(f"bootstrap: {cluster.bootstrap}")
