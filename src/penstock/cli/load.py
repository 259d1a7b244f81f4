"""`penstock load`: rows of files into a job's table, each file once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.maintenance import Job, Json, environment, tell
from penstock.errors import UserError
from penstock.spark.session import open_spark
from penstock.tables.kind import Loading, LoadWish, SaveMode
from penstock.tables.registry import kind_of, load_job


def load(
    job: Job,
    paths: Annotated[list[str] | None, typer.Argument(help="Files, folders or Delta tables.")] = None,
    mode: Annotated[
        SaveMode,
        typer.Option(help="What to do with a table that has rows: stop, replace by key, replace all, or do nothing."),
    ] = SaveMode.ERROR,
    format: Annotated[
        str | None,
        typer.Option(
            help="parquet, csv, json, delta, or what Spark reads: orc, avro, jdbc, ...; default: by the names."
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for Spark's reader; NAME=@FILE takes it from a file.")
    ] = None,
    by_partition: Annotated[
        bool, typer.Option("--by-partition", help="With overwrite: only rows of partition keys that are loaded.")
    ] = False,
    json: Json = False,
) -> None:
    """Load files, or what Spark reads; a load of files that was interrupted goes on, a repeated one does nothing."""
    spec = load_job(job)
    kind = kind_of(spec)
    if not isinstance(kind, Loading):
        raise UserError(f"the table of {spec.name} takes no loads", hint="loads are for tables with keys")
    if not paths and format is None:
        raise UserError("there is nothing to load", hint="name files or folders, or a --format that needs none")
    wish = LoadWish(tuple(paths or ()), mode, format, dict(map(_option, option or ())), by_partition)
    if by_partition and mode is not SaveMode.OVERWRITE:
        raise UserError("--by-partition goes with --mode overwrite")
    spark = open_spark(spec.spark, name=f"penstock load {spec.name}", light=format is None)
    try:
        report = kind.load(spec, wish, spark, environment())
    finally:
        spark.stop()
    tell(spec.name, report, json)


def _option(text: str) -> tuple[str, str]:
    """An option of Spark's reader; one from a file, such as a password, is in no list of processes."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UserError(f"--option {text}: expected NAME=VALUE")
    if not value.startswith("@"):
        return name, value
    try:
        return name, Path(value[1:]).read_text("utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--option {name}: {value[1:]} cannot be read", detail=str(error)) from None
