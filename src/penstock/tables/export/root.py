"""What the jobs of one root reserve for themselves, whose a plain file is, and files that the logs cannot name.

The name of a file shows its partition and last offset. A file gets its name after the commit of its type, so none is
beyond the type's position: a job that went on from older positions would write once more what such files hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from penstock.errors import InvariantError, UserError
from penstock.storage import Entry, NotFoundError, Storage
from penstock.tables.export.days import open_days
from penstock.tables.export.finishing import read_footer
from penstock.tables.export.logs import LOST, ExportLogs
from penstock.tables.export.names import (
    SUFFIX,
    claim_of,
    day_folder,
    output_owner,
    parse_final_name,
    topic_claim,
    type_and_day,
)

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
        return job if storage.put_if_absent(path, job.encode()) else _owner(storage, path)

    with ThreadPoolExecutor(CLAIMS_AT_ONCE) as pool:
        # Looked at first: a job that is refused must leave no claim that keeps others away.
        owners = list(pool.map(lambda path: _owner(storage, path), paths))
        return list(pool.map(claim, paths)) if all(owner in (None, job) for owner in owners) else owners


def _owner(storage: Storage, path: str) -> str | None:
    """The job that has a claim; None if there is no such claim."""
    try:
        return storage.read(path).decode()
    except NotFoundError:
        return None


# whose a file is


def own_files(logs: ExportLogs, folder: str, after: str = "") -> Iterator[Entry]:
    """The plain data files below a folder that may be the job's: no other job has reserved their names."""
    owner = _owner_of(logs)
    for entry in logs.storage.list(folder, after):
        if owner(entry.path) == logs.job.name and type_and_day(entry.path) is not None:
            yield entry


def visible_files(logs: ExportLogs, name: str) -> Iterator[str]:
    """The files below the folder of a type that readers of plain files see, without those of other jobs."""
    owner = _owner_of(logs)
    for entry in logs.storage.list(name):
        hidden = any(part.startswith(("_", ".")) for part in entry.path.split("/"))
        if entry.path.endswith(SUFFIX) and not hidden and owner(entry.path) in (None, logs.job.name):
            yield entry.path


def _owner_of(logs: ExportLogs) -> Callable[[str], str | None]:
    """The job that a file belongs to by its name: this one, unless another has reserved it; None for other names."""
    reserved = cache(lambda space: _owner(logs.storage, claim_of(space)))

    def owner(path: str) -> str | None:
        final = parse_final_name(path)
        return output_owner(path) if final is None else reserved(final.space) or logs.job.name

    return owner


def refuse_unnamed_files(logs: ExportLogs) -> None:
    """Stop before anything is written twice; days before the first that is not complete are not listed."""
    for name in logs.export.types if logs.is_plain else ():
        days = logs.days_of(name)
        opened = open_days(days, logs.state().watermark_of(name), logs.export.days.complete_after_seconds)
        first = min(opened, default=max(days, default=None))
        try:
            files = own_files(logs, name, "" if first is None else day_folder(name, first))
            paths = [entry.path for entry in files if _is_beyond(logs, name, entry.path)]
        except UserError:
            # A folder that cannot be read fails its type alone.
            continue
        if paths:
            # Another process may have committed them since.
            logs.refreshed(name)
            logs.state()
        if paths := [path for path in paths if _is_beyond(logs, name, path) and _is_of_penstock(logs, path)]:
            raise UserError(
                f"{logs.export.path} has data files such as {paths[0]} that the logs of the job do not name",
                detail="the logs were lost, or are older than the files: records would be written again",
                hint=f"{LOST}; if table.export.cluster was changed, set it to what it was",
            )


def _is_of_penstock(logs: ExportLogs, path: str) -> bool:
    """Whether a file says that it is of Penstock: another program may have put one under such a name."""
    try:
        return bool(read_footer(logs.storage, path).facts)
    except (NotFoundError, InvariantError):
        return False


def _is_beyond(logs: ExportLogs, name: str, path: str) -> bool:
    """Whether the records of a file are beyond what the logs, as they are loaded, have of its type."""
    final, state = parse_final_name(path), logs.known_state()
    if final is None:
        return False
    topic = next((topic for topic in state.fingerprints if logs.space.of(topic) == final.space), None)
    incarnation = state.incarnations.get(topic or "", 1)
    if topic is None or final.incarnation != incarnation:
        return topic is None or final.incarnation > incarnation
    for key, counted in state.current():
        partition = state.partition_of(key)
        if (partition.topic, partition.number) == (topic, final.partition):
            own = logs.position(name, partition)
            # The log of a type that cannot be read fails its type alone.
            return final.last_offset >= (own if own is not None else counted.position_of(name) or 0)
    return True
