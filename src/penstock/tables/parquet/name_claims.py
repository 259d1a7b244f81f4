"""Whether the file names that a job has claimed below its root are still those that its job file gives."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.storage import Storage
from penstock.tables.parquet.names import CLAIMS, NameSpace, is_of_topic


def refuse_other_names(storage: Storage, job: JobSpec, space: NameSpace, topics: Iterable[str]) -> None:
    """Refuse a job file under which the files that are there would no longer be the job's own.

    Only another `cluster` does that: what a topic's names begin with never changes otherwise.
    """
    expected = {space.of(topic): topic for topic in topics}
    for entry in storage.list(CLAIMS):
        claimed = entry.path.rsplit("/", 1)[-1]
        now = next((new for new, topic in expected.items() if is_of_topic(claimed, topic)), None)
        if claimed not in expected and now and storage.read(entry.path).decode() == job.name:
            raise UserError(
                f"the job {job.name} has named files below {job.table.path} that begin with {claimed}",
                detail=f"by the job file they would begin with {now}",
                hint="set table.export.cluster to what it was, or write to a new root",
            )
