"""`penstock load`: rows of Parquet files into a job's table, each file once."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.maintenance import Job, Json, environment, tell
from penstock.errors import UserError
from penstock.spark.session import open_spark
from penstock.tables.kind import Loading, SaveMode
from penstock.tables.registry import kind_of, load_job


def load(
    job: Job,
    paths: Annotated[list[str], typer.Argument(help="Parquet files, or folders of them.")],
    mode: Annotated[SaveMode, typer.Option(help="Add rows and replace by key, or replace all rows.")] = SaveMode.APPEND,
    json: Json = False,
) -> None:
    """Load Parquet files; a load that was interrupted goes on, a repeated one does nothing."""
    spec = load_job(job)
    kind = kind_of(spec)
    if not isinstance(kind, Loading):
        raise UserError(f"the table of {spec.name} takes no loads", hint="loads are for tables with keys")
    spark = open_spark(spec.spark, name=f"penstock load {spec.name}", light=True)
    try:
        report = kind.load(spec, paths, mode, spark, environment())
    finally:
        spark.stop()
    tell(spec.name, report, json)
