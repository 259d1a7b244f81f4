"""`penstock broker`: a real Kafka on this machine, for development."""

from __future__ import annotations

import json as json_text
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.peek import SAMPLE_RECORDS_MAX, Count, Topic, kafka_spec, print_records
from penstock.cli.tables import Json
from penstock.embedded.broker import Cluster, default_folder
from penstock.embedded.sample import produce_lines
from penstock.errors import UserError
from penstock.peek.sample import TopicReader

app = typer.Typer(help="A real Kafka on this machine, for development.", no_args_is_help=True, add_completion=False)

KAFKA_PORT = 9092
Folder = Annotated[Path | None, typer.Option(help="Folder of its data (default: in the user's cache).")]


@app.command()
def start(
    folder: Folder = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the bootstrap address.")] = False,
    json: Json = False,
) -> None:
    """Start Kafka and leave it running; the data of an earlier run is kept.

    Without --folder it takes port 9092 if that is free.
    """
    chosen = folder or default_folder()
    cluster = Cluster.start(chosen, port=KAFKA_PORT if folder is None else None)
    if quiet:
        typer.echo(cluster.bootstrap)
    else:
        _print(cluster, chosen, json)


@app.command()
def send(
    topic: Annotated[str, typer.Argument(help="The topic; created if it does not exist.")],
    folder: Folder = None,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions if the topic is created.")] = 1,
    key: Annotated[str | None, typer.Option(metavar="FIELD", help="The field of JSON lines that is the key.")] = None,
    headers: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of all records.")] = None,
    json: Json = False,
) -> None:
    """Send each line of standard input as a record."""
    cluster = _existing(folder or default_folder())
    lines = [(_key_of(line, key) if key else None, line.rstrip(b"\r\n")) for line in sys.stdin.buffer]
    named = [item.partition("=") for item in headers or []]
    produce_lines(cluster.bootstrap, topic, lines, partitions, [(name, value.encode()) for name, _, value in named])
    sent = {"topic": topic, "records": len(lines)}
    typer.echo(json_text.dumps(sent) if json else f"{len(lines)} records sent to {topic}")


@app.command()
def read(
    topic: Topic,
    folder: Folder = None,
    count: Count = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for further records.")] = False,
    json: Json = False,
) -> None:
    """Print the records of a topic from its beginning."""
    cluster = _existing(folder or default_folder())
    with TopicReader(kafka_spec(topic, cluster.bootstrap, None)) as reader:
        sample = () if follow else reader.sample("earliest", count or SAMPLE_RECORDS_MAX).records
        print_records(islice(reader.follow("earliest"), count) if follow else sample, json)


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


def _key_of(line: bytes, field: str) -> bytes:
    """The value of a field of a JSON object, as text."""
    try:
        value = json_text.loads(line)[field]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"a line is no JSON object with the field {field}", detail=repr(line[:200])) from None
    return (value if isinstance(value, str) else json_text.dumps(value)).encode()


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
