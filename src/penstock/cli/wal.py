"""`penstock wal`: a durable HTTP log for sources that cannot replay."""

from __future__ import annotations

import json as json_text
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, BinaryIO, TypeVar

import msgspec
import typer

from penstock.errors import UserError
from penstock.failpoints import ENVIRONMENT_NAME, armed, noop
from penstock.job.values import QuantityError, parse_duration, parse_size
from penstock.logs.wal.client import WalClient, is_token
from penstock.logs.wal.limits import WalLimits
from penstock.logs.wal.server import STEP, WalServer, is_loopback
from penstock.logs.wal.store import STEPS, WalStore

T = TypeVar("T")
DEFAULT_LISTEN = "127.0.0.1:7070"
FORMATS = {
    "json": "application/x-ndjson",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
    "lines": "text/plain",
}
"""The content types of `--format`."""
LINES_PER_APPEND = 1_000
BYTES_PER_APPEND = 4 * 1024 * 1024
"""A file of lines is sent in appends of at most so many; one longer line is an append of its own."""

app = typer.Typer(help="A durable HTTP log for sources that cannot replay (docs/wal.md).", no_args_is_help=True)

Url = Annotated[str, typer.Argument(help="The server, http://HOST:PORT.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TokenFile = Annotated[Path | None, typer.Option(help="A file with the token that the server wants.")]


@app.command()
def serve(
    folder: Annotated[Path, typer.Option(help="Where the log is kept.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = DEFAULT_LISTEN,
    segment_size: Annotated[str, typer.Option(hidden=True, help="Has no effect any more.")] = "",
    partition_size: Annotated[str, typer.Option(help="Unread records of a partition fill at most so much.")] = "4GiB",
    retention: Annotated[str, typer.Option(help="How long committed records stay.")] = "1d",
    dedup_window: Annotated[str, typer.Option(help="How long client keys are known.")] = "1h",
    dedup_keys: Annotated[int, typer.Option(min=1, help="Client keys known per partition.")] = 100_000,
    record_size: Annotated[str, typer.Option(help="Of one record, at most.")] = "1MiB",
    body_size: Annotated[str, typer.Option(help="Of one append, at most.")] = "16MiB",
    connections: Annotated[int, typer.Option(min=1, help="At once, at most.")] = 256,
    request_time: Annotated[str, typer.Option(help="Of a request, at most.")] = "60s",
    token_file: Annotated[
        Path | None, typer.Option(help="Answer only requests with a token of this file, one per line.")
    ] = None,
    without_token: Annotated[
        bool, typer.Option(help="Let every computer of the network send, read and delete.")
    ] = False,
    allow_host: Annotated[list[str] | None, typer.Option(help="A further name of this server.")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="Serve HTTPS with this certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of the certificate (PEM).")] = None,
    json: Json = False,
) -> None:
    """Serve a folder until SIGTERM or SIGINT; what has arrived by then is answered."""
    limits = WalLimits(
        partition_bytes_max=_parsed("--partition-size", partition_size, parse_size),
        retention_seconds=_parsed("--retention", retention, parse_duration),
        dedup_seconds=_parsed("--dedup-window", dedup_window, parse_duration),
        dedup_keys_max=dedup_keys,
        record_bytes_max=_parsed("--record-size", record_size, parse_size),
        body_bytes_max=_parsed("--body-size", body_size, parse_size),
        connections_max=connections,
        request_seconds_max=_parsed("--request-time", request_time, parse_duration),
    )
    host, port = _address(listen)
    tokens = [] if token_file is None else _tokens(token_file)
    if not tokens and not without_token and not is_loopback(host):
        hint = "give --token-file, listen on 127.0.0.1, or say --without-token"
        raise UserError(f"--listen: every computer that reaches {host} could read and delete the log", hint=hint)
    if (tls_certificate is None) != (tls_key is None):
        raise UserError("--tls-certificate and --tls-key belong together")
    certificate = None if tls_certificate is None else (str(tls_certificate), str(tls_key))
    failpoint = armed(os.environ.get(ENVIRONMENT_NAME, ""), (*STEPS, STEP))
    reach = failpoint.reach if failpoint is not None else noop
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with WalStore(folder, limits, reach=reach) as store:
        server = WalServer(store, host, port, reach, tokens, allow_host or (), certificate)
        server.start()
        _tell(json, {"folder": str(folder), "url": server.url}, f"serving {folder} at {server.url}")
        ended.wait()
        server.stop()


@app.command()
def append(
    url: Url,
    topic: Annotated[str, typer.Argument(help="The topic; it must exist.")],
    file: Annotated[str, typer.Argument(help="The file, or - for standard input.")] = "-",
    format: Annotated[str, typer.Option(help=f"{', '.join(FORMATS)}.")] = "json",
    partition: Annotated[int | None, typer.Option(min=0, help="All records into this one.")] = None,
    key_field: Annotated[str, typer.Option(help="The field of a record that is its key.")] = "",
    json_fields: Annotated[
        str, typer.Option(help="Columns of csv that are numbers or booleans, separated by commas.")
    ] = "",
    key: Annotated[
        str, typer.Option(help="Names this run: repeated with the same file, nothing is appended twice.")
    ] = "",
    token_file: TokenFile = None,
    json: Json = False,
) -> None:
    """Append a file: json has a value per line or one array, csv names its columns first, lines stay as they are."""
    if format not in FORMATS:
        raise UserError(f"there is no format {format}", hint=f"known: {', '.join(FORMATS)}")
    run = key or uuid.uuid4().hex
    records = known = 0
    with _client(url, token_file) as client, _opened(file) as source:
        for number, (body, kind) in enumerate(_bodies(source, format)):
            answers = client.append_body(
                topic,
                body,
                kind,
                partition=partition,
                key_field=key_field,
                json_fields=json_fields.split(",") if json_fields and format == "csv" else (),
                client_key=f"{run}:{number}",
            )
            records += sum(each.end - each.start for each in answers)
            known += sum(each.end - each.start for each in answers if each.repeated)
            if json:
                typer.echo(json_text.dumps([msgspec.to_builtins(each) for each in answers]))
    if not json:
        again = f", {known} of them by an earlier run" if known else ""
        typer.echo(f"{records} records appended to {topic}{again}")


@app.command()
def create(
    url: Url,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partitions: Annotated[int, typer.Option(min=1, help="Their number cannot be changed.")] = 1,
    token_file: TokenFile = None,
    json: Json = False,
) -> None:
    """Create a topic."""
    with _client(url, token_file) as client:
        made = client.create_topic(topic, partitions)
    count = len(made.partitions)
    _tell(json, {"topic": made.name, "id": made.id, "partitions": count}, f"{made.name} has {count} partitions")


@app.command()
def status(url: Url, token_file: TokenFile = None, json: Json = False) -> None:
    """Show topics, and the jobs that read them with what each has not committed yet."""
    with _client(url, token_file) as client:
        topics, jobs = client.topics().topics, client.jobs()
    rows = [(topic.name, each) for topic in topics for each in topic.partitions]
    if json:
        listed = [{"topic": name, "number": each.number, "first": each.first, "end": each.end} for name, each in rows]
        typer.echo(json_text.dumps({"partitions": listed, "jobs": jobs}))
        return
    for name, each in rows:
        lags = {job: each.end - known[name].get(each.number, 0) for job, known in jobs.items() if name in known}
        readers = ", ".join(f"{job} lags {lag}" for job, lag in lags.items()) or "no job is registered"
        typer.echo(f"{name}/{each.number}: [{each.first}, {each.end}), {each.bytes} bytes; {readers}")


@app.command()
def forget(
    url: Url,
    job: Annotated[str, typer.Argument(help="The job, by its name or group.")],
    token_file: TokenFile = None,
    json: Json = False,
) -> None:
    """Unregister a job: what only it has not read may then be trimmed."""
    with _client(url, token_file) as client:
        client.forget_job(job)
    _tell(json, {"forgotten": job}, f"{job} is forgotten")


def _tell(json: bool, facts: dict[str, object], text: str) -> None:
    typer.echo(json_text.dumps(facts) if json else text)


def _client(url: str, token_file: Path | None) -> WalClient:
    return WalClient(url, token="" if token_file is None else _tokens(token_file)[0])


def _tokens(path: Path) -> list[str]:
    """The tokens of a file, one per line; a client sends the first."""
    try:
        found = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--token-file: {path} cannot be read", detail=str(error)) from None
    if not found or not all(map(is_token, found)):
        raise UserError(f"--token-file: {path} has no token", hint="one per line, without blanks")
    return found


def _parsed(option: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except QuantityError as error:
        raise UserError(f"{option}: {text!r} is not understood", hint=str(error)) from None


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"--listen: {listen!r} is no address", hint="write HOST:PORT")
    return host.strip("[]"), int(port)


def _opened(file: str) -> BinaryIO:
    if file == "-":
        return sys.stdin.buffer
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise UserError(f"{file} cannot be read", detail=str(error)) from None


def _bodies(source: BinaryIO, format_: str) -> Iterator[tuple[bytes, str]]:
    """The file in bodies with their content types: by lines, of CSV each with the names of the columns before it.

    An Arrow stream and a JSON array are one body, and so is a CSV file with quotes in its names: they may hold breaks.
    """
    kind = FORMATS[format_]
    if format_ == "arrow":
        yield source.read(), kind
        return
    first = source.readline()
    if format_ == "json" and first.lstrip().startswith(b"["):
        yield first + source.read(), "application/json"
    elif format_ == "csv" and b'"' in first:
        yield first + source.read(), kind
    else:
        names = first if format_ == "csv" else b""
        lines = iter(source) if names else chain([first], source)
        while body := list(_body_lines(lines, quoted=format_ == "csv")):
            yield names + b"".join(body), kind


def _body_lines(lines: Iterator[bytes], quoted: bool) -> Iterator[bytes]:
    """The lines of one body; a CSV value in quotes may go over several, and is not torn apart."""
    size, open_quote = 0, False
    for number, line in enumerate(lines):
        yield line
        size += len(line)
        open_quote ^= quoted and line.count(b'"') % 2 == 1
        if not open_quote and (number + 1 >= LINES_PER_APPEND or size >= BYTES_PER_APPEND):
            return
