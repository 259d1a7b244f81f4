"""What the jobs of one root reserve for themselves, by objects that are created only if absent."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from penstock.errors import UserError
from penstock.lake.storage import NotFoundError, Storage
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.names import claim_of, topic_claim

CLAIMS_AT_ONCE = 16


def claim_names(logs: ExportLogs, topics: Iterable[str]) -> None:
    """Reserve the beginnings of file names: two jobs never write the same name (S5, S7)."""
    for topic in sorted(set(topics)):
        [owner] = _claimed(logs, [claim_of(logs.space.of(topic))])
        if owner != logs.job.name:
            raise UserError(
                f"the root {logs.export.path} is used by the job {owner} under the same file names",
                hint="give each cluster a name of its own (table.export.cluster), or each job its own root",
            )


def claim_topics(logs: ExportLogs, topic_ids: Iterable[str]) -> None:
    """Reserve what topics hold of each type: under other names, a second job would write every row once more."""
    places = [(topic_id, name) for topic_id in sorted(set(topic_ids)) for name in sorted(logs.export.types)]
    for (topic_id, name), owner in zip(places, _claimed(logs, [topic_claim(*place) for place in places]), strict=True):
        if owner not in (None, logs.job.name):
            raise UserError(
                f"the job {owner} already writes the type {name} of the same topic to {logs.export.path}",
                detail=f"the topic's id is {topic_id}: readers of {name}/ would see every row twice",
                hint="give one of the jobs a root of its own, or let one job do the work of both",
            )


def _claimed(logs: ExportLogs, paths: list[str]) -> list[str | None]:
    """The jobs that have these claims: this one, unless another was first. None is made if another has one of them."""
    job, storage = logs.job.name, logs.storage

    def claim(path: str) -> str | None:
        return job if storage.put_if_absent(path, job.encode()) else known_owner(storage, path)

    with ThreadPoolExecutor(CLAIMS_AT_ONCE) as pool:
        # Looked at first: a job that is refused must leave no claim that keeps others away.
        owners = list(pool.map(lambda path: known_owner(storage, path), paths))
        return list(pool.map(claim, paths)) if all(owner in (None, job) for owner in owners) else owners


def known_owner(storage: Storage, path: str) -> str | None:
    """The job that has a claim; None if there is no such claim."""
    try:
        return storage.read(path).decode()
    except NotFoundError:
        return None
