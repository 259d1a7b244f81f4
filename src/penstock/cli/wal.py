"""`penstock wal`: a durable HTTP log for sources that cannot replay."""

from __future__ import annotations

import json as json_text
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli.tables import parsed
from penstock.errors import UserError
from penstock.failpoints import ENVIRONMENT_NAME, armed, noop
from penstock.job.values import parse_duration, parse_size
from penstock.logs.wal.client import WalClient
from penstock.logs.wal.server import STEP, WalServer
from penstock.logs.wal.store import STEPS, WalLimits, WalStore
from penstock.serving import host_and_port, is_loopback, read_tokens

DEFAULT_LISTEN = "127.0.0.1:7070"

app = typer.Typer(
    help="A durable HTTP log for sources that cannot replay (docs/wal.md).", no_args_is_help=True, add_completion=False
)

Url = Annotated[str, typer.Argument(help="The server, http://HOST:PORT.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TokenFile = Annotated[Path | None, typer.Option(help="A file with the token of the server.")]


@app.command()
def serve(
    folder: Annotated[Path, typer.Option(help="Where the log is kept.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = DEFAULT_LISTEN,
    partition_size: Annotated[str, typer.Option(help="Maximum bytes of unread records per partition.")] = "4GiB",
    retention: Annotated[str, typer.Option(help="How long committed records stay.")] = "1d",
    token_file: Annotated[
        Path | None, typer.Option(help="Answer only requests with a token of this file, one per line.")
    ] = None,
    without_token: Annotated[bool, typer.Option(help="Let any client send, read and delete without a token.")] = False,
    allow_host: Annotated[list[str] | None, typer.Option(help="Another host name of this server.")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="Serve HTTPS with this certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of the certificate (PEM).")] = None,
    json: Json = False,
) -> None:
    """Serve a folder until SIGTERM or SIGINT; requests that have arrived are answered."""
    limits = WalLimits(
        partition_bytes_max=parsed("--partition-size", partition_size, parse_size),
        retention_seconds=parsed("--retention", retention, parse_duration),
    )
    host, port = host_and_port("--listen", listen)
    tokens = [] if token_file is None else read_tokens("--token-file", token_file)
    if not tokens and not without_token and not is_loopback(host):
        hint = "give --token-file, listen on 127.0.0.1, or give --without-token"
        raise UserError(f"--listen: every computer that reaches {host} could read and delete the log", hint=hint)
    if (tls_certificate is None) != (tls_key is None):
        raise UserError("--tls-certificate and --tls-key need each other", hint="give both or neither")
    certificate = None if tls_certificate is None else (str(tls_certificate), str(tls_key))
    failpoint = armed(os.environ.get(ENVIRONMENT_NAME, ""), (*STEPS, STEP))
    at_step = failpoint.at_step if failpoint is not None else noop
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn handles them, and raises them again
    with closing(WalStore(folder, limits, at_step=at_step)) as store:
        server = WalServer(store, host, port, at_step, tokens, allow_host or (), certificate)
        _print(json, {"folder": str(folder), "url": server.url}, f"serving {folder} at {server.url}")
        server.run()


@app.command()
def create(
    url: Url,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions; cannot be changed later.")] = 1,
    token_file: TokenFile = None,
    json: Json = False,
) -> None:
    """Create a topic."""
    with _client(url, token_file) as client:
        states = client.create_topic(topic, partitions)
    facts: dict[str, object] = {"topic": topic, "id": states[0].partition.topic_id, "partitions": len(states)}
    _print(json, facts, f"{topic} has {len(states)} partitions")


@app.command()
def status(url: Url, token_file: TokenFile = None, json: Json = False) -> None:
    """Show topics, and the jobs that read them with their lag."""
    with _client(url, token_file) as client:
        states = client.partitions()
    if json:
        typer.echo(msgspec.json.encode(states))
        return
    for state in states:
        lags = [f"{job} lags {state.end - (position or 0)}" for job, position in state.positions.items()]
        readers = ", ".join(lags) or "no job is registered"
        typer.echo(f"{state.partition}: [{state.first}, {state.end}), {state.bytes} bytes; {readers}")


@app.command()
def forget(
    url: Url,
    job: Annotated[str, typer.Argument(help="The job, as `status` shows it.")],
    token_file: TokenFile = None,
    json: Json = False,
) -> None:
    """Unregister a job; records that only it has not read may then be deleted."""
    with _client(url, token_file) as client:
        client.forget_job(job)
    _print(json, {"forgotten": job}, f"job {job} is unregistered")


def _print(json: bool, facts: dict[str, object], text: str) -> None:
    typer.echo(json_text.dumps(facts) if json else text)


def _client(url: str, token_file: Path | None) -> WalClient:
    return WalClient(url, token="" if token_file is None else read_tokens("--token-file", token_file)[0])
