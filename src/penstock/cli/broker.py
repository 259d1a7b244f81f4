"""`penstock broker`: a real Kafka on this machine, for development."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.tables import Json
from penstock.embedded.broker import Cluster, default_folder
from penstock.embedded.sample import produce_lines
from penstock.errors import UserError

app = typer.Typer(help="A real Kafka on this machine, for development.", no_args_is_help=True, add_completion=False)

Folder = Annotated[Path | None, typer.Option(help="Folder of its data (default: in the user's cache).")]


@app.command()
def start(
    folder: Folder = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the bootstrap address.")] = False,
    json: Json = False,
) -> None:
    """Start Kafka and leave it running; the data of an earlier run is kept."""
    chosen = folder or default_folder()
    cluster = Cluster.start(chosen)
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
    cluster = _existing(folder or default_folder())
    lines = [line.rstrip(b"\r\n") for line in sys.stdin.buffer]
    produce_lines(cluster.bootstrap, topic, lines, partitions)
    sent = {"topic": topic, "records": len(lines)}
    typer.echo(json_text.dumps(sent) if json else f"{len(lines)} records sent to {topic}")


@app.command()
def status(folder: Folder = None, json: Json = False) -> None:
    """Show whether the broker is running, and its address."""
    chosen = folder or default_folder()
    _print(Cluster.open(chosen), chosen, json)


@app.command()
def stop(folder: Folder = None, json: Json = False) -> None:
    """Stop the broker; its data is kept."""
    chosen = folder or default_folder()
    cluster = _existing(chosen)
    cluster.stop()
    _print(cluster, chosen, json)


def _existing(folder: Path) -> Cluster:
    cluster = Cluster.open(folder)
    if cluster is None:
        raise UserError(
            "no embedded broker was ever started in this folder",
            detail=str(folder.absolute()),
            hint="name the folder that it was started with: --folder",
        )
    return cluster


def _print(cluster: Cluster | None, folder: Path, json: bool) -> None:
    pid = None if cluster is None else cluster.pid
    bootstrap = None if cluster is None or pid is None else cluster.bootstrap
    if json:
        content = {"running": pid is not None, "bootstrap": bootstrap, "folder": str(folder.absolute()), "pid": pid}
        typer.echo(json_text.dumps(content))
    else:
        typer.echo(f"{'stopped' if pid is None else 'running'} ({folder.absolute()})")
        if bootstrap is not None:
            typer.echo(f"bootstrap: {bootstrap}")
