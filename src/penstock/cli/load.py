"""`penstock load`: rows of files into a job's table, each file once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.maintenance import environment, tell
from penstock.errors import UserError
from penstock.spark.session import open_spark
from penstock.tables.kind import Loading, LoadWish, SaveMode
from penstock.tables.registry import kind_of, load_job


def load(
    job: Annotated[Path, typer.Argument(help="Job file.", show_default=False)],
    paths: Annotated[list[str], typer.Argument(help="Files, folders or Delta tables.", show_default=False)],
    mode: Annotated[
        SaveMode,
        typer.Option(help="What to do with a table that has rows: stop, replace by key, replace all, or do nothing."),
    ] = SaveMode.ERROR,
    format: Annotated[
        str | None, typer.Option(help="parquet, csv, json or delta; default: by the names.", show_default=False)
    ] = None,
    by_partition: Annotated[
        bool, typer.Option("--by-partition", help="With overwrite: only rows of partition keys that are loaded.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Load Parquet, CSV, JSON or Delta; a load that was interrupted goes on, a repeated one finds nothing to do."""
    spec = load_job(job)
    kind = kind_of(spec)
    if not isinstance(kind, Loading):
        raise UserError(f"the table of {spec.name} takes no loads", hint="loads are for tables with keys")
    wish = LoadWish(tuple(paths), mode, format, by_partition)
    if by_partition and mode is not SaveMode.OVERWRITE:
        raise UserError("--by-partition goes with --mode overwrite")
    spark = open_spark(spec.spark, name=f"penstock load {spec.name}", light=True)
    try:
        report = kind.load(spec, wish, spark, environment())
    finally:
        spark.stop()
    tell(spec.name, report, json)
