"""A twin of Spark: the stages of a job run in this very process, one partition after another.

Stages and what they carry are pickled on their way, as Spark does it. There is no SQL, no JVM and no other process:
what needs those is tried on the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class LocalContext:
    master: str = "local[2]"
    defaultParallelism: int = 2  # noqa: N815, Spark's own name
    _jsc: None = None


@dataclass(slots=True)
class LocalSession:
    """As much of a session as writers ask for."""

    sparkContext: LocalContext = field(default_factory=LocalContext)  # noqa: N815, Spark's own name
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def conf(self) -> LocalSession:
        return self

    def set(self, name: str, setting: str) -> None:
        self.settings[name] = setting

    def newSession(self) -> LocalSession:  # noqa: N802, Spark's own name
        return LocalSession()

    def range(self, start: int, end: int, step: int, partitions: int) -> LocalFrame:
        numbers = list(range(start, end, step))
        share = -(-len(numbers) // partitions)
        parts = [numbers[number * share : (number + 1) * share] for number in range(partitions)]
        return LocalFrame([[pa.RecordBatch.from_pydict({"id": pa.array(part, pa.int64())})] for part in parts if part])

    def createDataFrame(self, table: pa.Table) -> LocalFrame:  # noqa: N802, Spark's own name
        return LocalFrame([table.combine_chunks().to_batches()])


@dataclass(frozen=True, slots=True)
class LocalFrame:
    """The batches of each partition."""

    partitions: list[list[pa.RecordBatch]]

    def mapInArrow(self, stage: Stage, schema: object) -> LocalFrame:  # noqa: N802, Spark's own name
        sent = cloudpickle.dumps(stage)  # type: ignore[no-untyped-call]
        return LocalFrame([list(cloudpickle.loads(sent)(iter(batches))) for batches in self.partitions])

    def collect(self) -> list[Mapping[str, Any]]:
        return [row for batches in self.partitions for batch in batches for row in batch.to_pylist()]


def local_session() -> SparkSession:
    return cast(SparkSession, LocalSession())
