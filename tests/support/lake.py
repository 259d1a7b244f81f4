"""Delta tables for tests: real ones on local disk and on an S3 server, filled with rows that hold their offsets."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import boto3
import polars as pl
import pyarrow as pa

from penstock.environment import Environment, new_batch_id
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import Counts, StagedFile
from penstock.flow.write.names import staged_name
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.job.spec import DecodeSpec, JobSpec, KafkaLogSpec
from penstock.lake.delta.opening import open_or_create
from penstock.lake.delta.table import DeltaLog
from penstock.lake.proposal import Outcome, Proposal, ProposalPart, SlicePart, StartPart
from penstock.logs.log import Partition, Slice
from penstock.tables.delta.spec import DeltaSpec
from tests.support.quarantine_url import quarantine_url

JOB = "web-requests"
SCHEMA = pa.schema([("day", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("text", pa.string())])
TOPIC_ID = "pJ-9_Zt0QW2m"
ZERO = Partition("web", TOPIC_ID, 0)
ONE = Partition("web", TOPIC_ID, 1)
BUCKET = "lake"

Row = tuple[int, int]
"""(partition, offset)"""


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """The storage options of an S3 server with one bucket."""
    # A process of its own: the Delta library keeps Python's lock while it reads history, and a thread would starve.
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.s3_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
        boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="id",
            aws_secret_access_key="key",
            region_name="us-east-1",
        ).create_bucket(Bucket=BUCKET)
        yield {
            "aws_endpoint_url": endpoint,
            "aws_access_key_id": "id",
            "aws_secret_access_key": "key",
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
            # The server's conditional put is atomic; so is the commit.
            "aws_conditional_put": "etag",
        }


@dataclass(slots=True)
class Lake:
    """One table of one job; each row holds the offset that it came from."""

    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ("day",)
    properties: Mapping[str, str] = field(default_factory=dict)
    schema: pa.Schema = SCHEMA

    @property
    def spec(self) -> DeltaSpec:
        return DeltaSpec(
            path=self.path,
            partition_by=self.partition_by,
            storage_options=self.options,
            properties=self.properties,
        )

    @property
    def job(self) -> JobSpec:
        return JobSpec(
            name=JOB,
            log=KafkaLogSpec(bootstrap="127.0.0.1:9", topics=("web",)),
            decode=DecodeSpec("json"),
            schema=self.schema,
            columns={},
            table=self.spec,
        )

    def job_file(self, folder: Path) -> str:
        """A job file that names the table."""
        file = folder / "job.yaml"
        file.write_text(
            f"""
job: {JOB}
log:
  kafka: {{bootstrap: "127.0.0.1:9", topics: [web]}}
decode: json
schema: {{day: string, partition: int, offset: long, text: string}}
table:
  delta: {{path: "{self.path}", partition_by: [day]}}
"""
        )
        return str(file)

    def open(self, environment: Environment | None = None) -> DeltaLog:
        """A handle of its own on the table, which is created if it is missing."""
        return open_or_create(
            self.spec, JOB, self.schema, "add", environment or Environment(sleep=lambda seconds: None)
        )

    def start(self, *partitions: Partition, offset: int = 0) -> DeltaLog:
        """The table with positions for these partitions."""
        table = self.open()
        table.commit(Proposal(JOB, new_batch_id(), tuple(StartPart(partition, offset, 1) for partition in partitions)))
        return table

    def stage(self, partition: Partition, start: int, end: int, days: Sequence[str | None] = ("d1",)) -> SlicePart:
        """Staged files with one row per offset, its days in turn."""
        rows = [
            {
                "day": days[offset % len(days)],
                "partition": partition.number,
                "offset": offset,
                "text": f"row {partition.number}/{offset}",
            }
            for offset in range(start, end)
        ]
        files = _staged(
            WriteOptions(self.path, self.schema, self.options, self.partition_by), partition, (start, end), rows
        )
        counts = Counts(read=len(rows), written=len(rows))
        return SlicePart(Slice(partition, start, end, start), 1, counts, files)

    def stage_bad(self, partition: Partition, start: int, end: int, job: str = JOB) -> SlicePart:
        """A slice of only bad records."""
        rows = [
            {
                "job": job,
                "topic": partition.topic,
                "topic_id": partition.topic_id,
                "partition": partition.number,
                "offset": offset,
            }
            for offset in range(start, end)
        ]
        options = WriteOptions(self.quarantine(job), QUARANTINE_SCHEMA, self.options)
        files = _staged(options, partition, (start, end), rows)
        counts = Counts(read=len(rows), quarantined=len(rows))
        return SlicePart(Slice(partition, start, end, start), 1, counts, (), files)

    def quarantine(self, job: str = JOB) -> str:
        """The folder of a job's quarantine, of the table as it is now."""
        return quarantine_url(self.path, job, self.options)

    def append(
        self, table: DeltaLog, partition: Partition, start: int, end: int, days: Sequence[str | None] = ("d1",)
    ) -> Outcome:
        """Stage and commit one slice."""
        return commit(table, self.stage(partition, start, end, days))

    def rows(self, version: int | None = None) -> list[Row]:
        """What a reader finds, sorted; Polars reads the files by itself."""
        frame = pl.read_delta(self.path, version=version, storage_options=dict(self.options) or None)
        return sorted(frame.select("partition", "offset").rows())

    def days(self) -> list[tuple[str | None, int]]:
        """Day and offset of every row, by offset."""
        frame = pl.read_delta(self.path, storage_options=dict(self.options) or None)
        return frame.sort("offset").select("day", "offset").rows()


def commit(table: DeltaLog, *parts: ProposalPart) -> Outcome:
    """Commit parts as one batch, with the columns that the lake's files have."""
    return table.commit(Proposal(JOB, new_batch_id(), parts), SCHEMA)


def with_token(part: SlicePart, token: int) -> SlicePart:
    return replace(part, token=token)


def offsets(partition: Partition, start: int, end: int) -> list[Row]:
    return [(partition.number, offset) for offset in range(start, end)]


def at_step(step: str, act: Callable[[], object]) -> Environment:
    """An environment in which `act` happens the first time that the step is reached: an act of another process."""
    waiting = [act]

    def at_step(reached: str) -> None:
        if reached == step and waiting:
            waiting.pop()()

    return Environment(sleep=lambda seconds: None, at_step=at_step)


def _staged(
    options: WriteOptions,
    partition: Partition,
    ends: tuple[int, int],
    rows: Sequence[Mapping[str, object]],
) -> tuple[StagedFile, ...]:
    writer = StagedWriter(
        options,
        lambda: staged_name(partition.topic_id, partition.number, *ends, uuid.uuid4().hex),
        partition.topic,
        partition.number,
    )
    for batch in pa.Table.from_pylist(list(rows), options.schema).to_batches():
        writer.write(batch)
    return writer.finish()
