"""Where the rows of one commit of a load come from: files that the tasks read themselves, or a source of Spark's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from penstock.errors import UserError
from penstock.flow.compile import collect_reports
from penstock.flow.write.report import REPORT_SCHEMA
from penstock.spark.failures import SPARK_ERRORS, refusal_of, spark_errors
from penstock.staging.dealing import run_each
from penstock.tables.keyed.loading.reading import file_schema
from penstock.tables.keyed.loading.sources import SourceFile
from penstock.tables.keyed.loading.task import FrameStage, LoadTarget, LoadTaskReport
from penstock.tables.kind import LoadWish


class Origin(Protocol):
    """The rows of one commit."""

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Those that the commit names, so that they are not loaded again."""

    def schemas(self, fields: pa.Schema) -> Iterator[pa.Schema]:
        """The columns that the rows bring to a table that knows these, as far as they can be told before reading."""

    def read(self, spark: SparkSession, target: LoadTarget) -> list[LoadTaskReport]:
        """One Spark job, which leaves the rows as runs."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files of formats that Arrow reads."""

    files: tuple[SourceFile, ...]

    def schemas(self, fields: pa.Schema) -> Iterator[pa.Schema]:
        return (file_schema(file, fields) for file in self.files)

    def read(self, spark: SparkSession, target: LoadTarget) -> list[LoadTaskReport]:
        if any(file.format == "json" for file in self.files):
            # Columns that JSON cannot have are refused here, not in a task.
            target.reader.decoder()
        return run_each(spark, target.take_file, tuple(enumerate(self.files)), LoadTaskReport, of="files")


@dataclass(frozen=True)
class SparkSource:
    """What a reader of Spark's reads. It has no files that a commit could name: loaded again, it is read again."""

    spark: SparkSession
    wish: LoadWish
    files: tuple[SourceFile, ...] = ()

    @cached_property
    def frame(self) -> DataFrame:
        reader = self.spark.read.format(str(self.wish.format)).options(**self.wish.options)
        try:
            return reader.load(list(self.wish.paths)) if self.wish.paths else reader.load()
        except SPARK_ERRORS as error:
            raise UserError(
                f"Spark cannot read {self.name}",
                detail=refusal_of(error),
                hint="the jars of a format go to spark.conf of the job file, as spark.jars or spark.jars.packages",
            ) from error

    @property
    def name(self) -> str:
        return f"{self.wish.format} {' '.join(self.wish.paths)}".strip()

    def schemas(self, fields: pa.Schema) -> Iterator[pa.Schema]:
        yield to_arrow_schema(self.frame.schema)

    def read(self, spark: SparkSession, target: LoadTarget) -> list[LoadTaskReport]:
        with spark_errors(spark):
            count = self.frame.rdd.getNumPartitions()
            stage = FrameStage(self.name, target)
            frame = self.frame.mapInArrow(stage, from_arrow_schema(REPORT_SCHEMA))
            return collect_reports(frame, LoadTaskReport, count)
