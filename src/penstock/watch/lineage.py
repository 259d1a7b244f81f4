"""OpenLineage run events, one for each commit: which topics became rows of which table.

Where they go is what the client's own configuration states: its environment variables, or `openlineage.yml`.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit
from uuid import UUID

from penstock.errors import UserError
from penstock.events import BatchCommitted, Event
from penstock.job.spec import JobSpec, KafkaLogSpec
from penstock.reporting.model import shown_path

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, OutputDataset, RunEvent

NAMESPACE = "penstock"
PRODUCER = "urn:penstock"
WAITING_MAX = 1_000
"""Commits whose events wait for a server; while more wait, further ones are left out."""
CLOSE_SECONDS_MAX = 5.0
logger = logging.getLogger("penstock.lineage")


class Lineage:
    """Sends events in a thread of its own, so that no commit waits for a server; a context manager."""

    def __init__(self) -> None:
        self._client = _open_client()
        self._waiting: queue.Queue[tuple[JobSpec, BatchCommitted, datetime] | None] = queue.Queue(WAITING_MAX)
        self._thread = threading.Thread(target=self._send_all, name="lineage", daemon=True)

    def listener(self, job: JobSpec) -> JobLineage:
        return JobLineage(self, job)

    def put(self, job: JobSpec, batch: BatchCommitted) -> None:
        try:
            self._waiting.put_nowait((job, batch, datetime.now(UTC)))
        except queue.Full:
            logger.warning("too many lineage events wait: that of batch %s of %s is left out", batch.batch, job.name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._waiting.put(None, timeout=CLOSE_SECONDS_MAX)
        except queue.Full:
            return
        self._thread.join(CLOSE_SECONDS_MAX)

    def _send_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                self._client.emit(run_event(*item))
            except Exception as error:  # noqa: BLE001, the top of a thread: a server of others must not stop the job
                logger.warning("a lineage event cannot be sent: %s", error)


class JobLineage:
    """Gives the commits of one job to the thread that sends."""

    def __init__(self, lineage: Lineage, job: JobSpec) -> None:
        self._lineage = lineage
        self._job = job

    def event(self, event: Event) -> None:
        if isinstance(event, BatchCommitted):
            self._lineage.put(self._job, event)


def _open_client() -> OpenLineageClient:
    try:
        from openlineage.client import OpenLineageClient  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UserError("--lineage needs OpenLineage's client", hint="pip install 'penstock[lineage]'") from error
    return OpenLineageClient()


def run_event(job: JobSpec, batch: BatchCommitted, at: datetime) -> RunEvent:
    """The event of one commit, with its topics and positions, its tables, their columns, rows and bytes."""
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState  # noqa: PLC0415
    from openlineage.client.facet_v2 import BaseFacet, JobFacet, job_type_job  # noqa: PLC0415

    kind = job_type_job.JobTypeJobFacet("STREAMING", "PENSTOCK", job.table.kind.upper())
    facts = {"batch": batch.batch, "version": batch.version, "read": batch.read, "quarantined": batch.quarantined}
    commit: Any = BaseFacet(producer=PRODUCER).with_additional_properties(**facts, filtered=batch.filtered)
    job_facets: dict[str, JobFacet] = {"jobType": kind}
    return RunEvent(
        eventTime=at.isoformat(),
        eventType=RunState.COMPLETE,
        run=Run(str(UUID(batch.batch)), {"penstock_commit": commit}),
        job=Job(NAMESPACE, job.name, job_facets),
        inputs=list(_inputs(job, batch)),
        outputs=list(_outputs(job, batch)),
        producer=PRODUCER,
    )


def _inputs(job: JobSpec, batch: BatchCommitted) -> Iterator[InputDataset]:
    """The topics, each with the offsets that were read of its partitions."""
    from openlineage.client.event_v2 import InputDataset  # noqa: PLC0415
    from openlineage.client.facet_v2 import BaseFacet  # noqa: PLC0415

    topics: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for partition, (start, end) in batch.slices.items():
        topic, _, number = partition.rpartition("/")
        topics[topic][number] = {"start": start, "end": end}
    for topic, partitions in topics.items():
        facet: Any = BaseFacet(producer=PRODUCER).with_additional_properties(partitions=partitions)
        yield InputDataset(_log_namespace(job), topic, {"penstock_positions": facet})


def _outputs(job: JobSpec, batch: BatchCommitted) -> Iterator[OutputDataset]:
    """The tables that got rows: one, or one for each type."""
    from openlineage.client.event_v2 import OutputDataset  # noqa: PLC0415
    from openlineage.client.facet_v2 import (  # noqa: PLC0415
        DatasetFacet,
        OutputDatasetFacet,
        output_statistics_output_dataset,
        schema_dataset,
    )

    namespace, root = _place(shown_path(job))
    for name, output in batch.outputs.items():
        columns = [schema_dataset.SchemaDatasetFacetFields(column, kind) for column, kind in output.columns.items()]
        counted = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        statistics: dict[str, OutputDatasetFacet] = {
            "outputStatistics": counted(output.rows, output.size_bytes, output.files)
        }
        facets: dict[str, DatasetFacet] = {"schema": schema_dataset.SchemaDatasetFacet(fields=columns)}
        yield OutputDataset(namespace, f"{root}/{name}".rstrip("/"), statistics, facets=facets)


def _log_namespace(job: JobSpec) -> str:
    """As OpenLineage names datasets: the first broker of a Kafka."""
    if isinstance(job.log, KafkaLogSpec):
        return f"kafka://{job.log.bootstrap.split(',')[0].strip()}"
    return job.log.kind


def _place(path: str) -> tuple[str, str]:
    """As OpenLineage names datasets: scheme and host, then the path."""
    parts = urlsplit(path)
    if not parts.scheme or parts.scheme == "file":
        return "file", parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")
