"""`penstock.write`: rows of a data frame into a keyed table, also from a streaming query of the caller's program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.events import OnLanded
from penstock.job.spec import JobSpec
from penstock.tables.kind import Loading, SaveMode, StreamBatch, Written
from penstock.tables.registry import kind_of, load_job

ForeachBatch = Callable[[DataFrame, int], None]


def write(frame: DataFrame, job: Path | str, *, mode: str = "append") -> Written:
    """Write rows to the keyed table of a job file: `append` replaces by key, `overwrite` replaces all rows.

    Rows are as those of `penstock load`: older than all records of the log, and newer than rows that were written
    before. It is one commit. The session of the frame does the work, and its Python must have Penstock.
    """
    if mode not in [*SaveMode]:
        raise UserError(f"invalid mode {mode!r}", hint=f"write {' or '.join(SaveMode)}")
    return _write(frame, load_job(Path(job)), SaveMode(mode), None)


def foreach_batch(job: Path | str, *, query: str, on_landed: OnLanded | None = None) -> ForeachBatch:
    """A function for `DataStreamWriter.foreachBatch`, which writes each batch of a query once.

    The commit of a batch carries the query and the number of the batch; one that the table has already is skipped. A
    query that begins again without its checkpoint numbers its batches from 0 and needs another name. `on_landed` is
    called with the number of the batch, by query, and the version of the table.
    """
    spec = load_job(Path(job))

    def take(frame: DataFrame, number: int) -> None:
        written = _write(frame, spec, SaveMode.APPEND, StreamBatch(query, number))
        if on_landed is not None:
            on_landed({query: number}, written.version)

    return take


def _write(frame: DataFrame, job: JobSpec, mode: SaveMode, batch: StreamBatch | None) -> Written:
    kind = kind_of(job)
    if not isinstance(kind, Loading):
        raise UserError(f"rows cannot be written into {job.name}", hint="`penstock.write` is for keyed tables")
    return kind.write(job, frame, mode, batch, Environment())
