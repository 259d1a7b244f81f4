"""The `penstock` command: the verbs put together, and errors turned into text and exit codes."""

from __future__ import annotations

import sys

import typer

from penstock.cli import broker, quarantine, wal
from penstock.cli.check import check
from penstock.cli.claims import commands as claims
from penstock.cli.demo import demo
from penstock.cli.maintenance import compact, load, rebuild, vacuum
from penstock.cli.run import run
from penstock.cli.status import status
from penstock.cli.verify import verify
from penstock.errors import PenstockError

EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="penstock",
    help="Kafka topics into tables, every record once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (demo, check, run, load, status, verify, compact, vacuum, rebuild):
    app.command()(verb)
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(claims.app, name="claims")
app.add_typer(broker.app, name="broker")
app.add_typer(wal.app, name="wal")


def main() -> None:
    """Run the command line; a `PenstockError` ends it with its text and its exit code."""
    try:
        app()
    except PenstockError as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
