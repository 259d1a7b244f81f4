"""The `penstock` command: the verbs put together, and errors turned into text and exit codes.

A verb is imported when it is used: the help needs neither Spark nor Kafka.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.errors import PenstockError

EXIT_INTERRUPTED = 130
VERBS = {
    "demo": ("demo", "Kill a job in mid-batch and prove that every record is there once."),
    "peek": ("peek", "Show what is in a topic: formats, fields, rates, candidates for event time and key."),
    "init": ("init", "Write a job file for a topic."),
    "check": ("check", "Report all faults of job files."),
    "run": ("run", "Run jobs: write every record of their topics to their tables once."),
    "load": ("maintenance", "Load Parquet files into a keyed table."),
    "status": ("status", "Show verdicts, positions, lag, types, last commit, quarantine and alerts."),
    "console": ("console", "Serve web pages that show jobs: lag, commits, quarantine."),
    "verify": ("verify", "Compare log and table: prove that every record is there once."),
    "compact": ("maintenance", "Merge small files; the job may be running."),
    "vacuum": ("maintenance", "Delete unreferenced files; the job may be running."),
    "rebuild": ("maintenance", "Restore lost logs of an export from its files."),
    "quarantine": ("quarantine", "List, show, replay or discard records that could not be written."),
    "claims": ("claims.commands", "Show who holds which partition; pause a group, release a claim."),
    "pack": ("pack", "Pack this Python environment for the executors of a cluster."),
    "broker": ("broker", "A real Kafka on this machine, for development."),
    "wal": ("wal", "A durable HTTP log for sources that cannot replay (docs/wal.md)."),
}
"""The module of each verb below `penstock.cli`, and its line in the help."""


class LazyVerb(TyperCommand):
    """A verb in the list of all; the command itself is imported when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> Any:
        assert self.name is not None
        module = import_module(f"penstock.cli.{VERBS[self.name][0]}")
        commands = getattr(module, "app", None)
        if commands is None:
            commands = typer.Typer(add_completion=False)
            commands.command(self.name)(getattr(module, self.name))
        return typer.main.get_command(commands)


class Verbs(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        verbs = {name: LazyVerb(name, help=text) for name, (_, text) in VERBS.items()}
        self.commands = {**verbs, **self.commands}


app = typer.Typer(
    name="penstock",
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def penstock(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Kafka topics into tables, every record once."""


def main() -> None:
    """Run the command line; a `PenstockError` ends it with its text and its exit code."""
    # Libraries in Rust print warnings about errors that they also raise.
    os.environ.setdefault("RUST_LOG", "error")
    try:
        app()
    except PenstockError as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
