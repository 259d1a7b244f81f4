"""Spark jobs other than batches of a log: pieces of work are distributed to tasks, and each gives a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.flow.compile import collect_reports
from penstock.flow.worker import spared_worker
from penstock.flow.write.report import REPORT_SCHEMA, ReportT, report_batch
from penstock.spark.failures import spark_errors

PieceT = TypeVar("PieceT")


@dataclass(frozen=True, slots=True)
class _EachPiece(Generic[PieceT]):
    """What a task runs: numbers of pieces into reports of the work on them."""

    work: Callable[[PieceT], object]
    pieces: Sequence[PieceT]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with spared_worker():
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield report_batch(self.work(self.pieces[number]))


def run_each(
    spark: SparkSession,
    work: Callable[[PieceT], ReportT],
    pieces: Sequence[PieceT],
    kind: type[ReportT],
    tasks: int | None = None,
    of: str = "tasks",
) -> list[ReportT]:
    """Do the work on every piece, in so many tasks, by default one per piece; all pieces are sent to every task."""
    count = len(pieces)
    with spark_errors(spark):
        numbers = spark.range(0, count, 1, tasks or count)
        frame = numbers.mapInArrow(_EachPiece(work, pieces), from_arrow_schema(REPORT_SCHEMA))
        return collect_reports(frame, kind, count, of)
