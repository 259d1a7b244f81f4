"""What the jobs of one root reserve for themselves, whose a plain file is, and files that the logs cannot name.

The name of a file shows its partition and last offset. A file gets its name after the commit of its type, so none is
beyond the type's position: a job that went on from older positions would write once more what such files hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache

from penstock.errors import InvariantError, UserError
from penstock.logs.log import Partition
from penstock.storage import Entry, NotFoundError, Storage
from penstock.tables.export.finishing import read_footer
from penstock.tables.export.logs import LOST, ExportLogs
from penstock.tables.export.markers import DayMarkers
from penstock.tables.export.names import (
    SUFFIX,
    claim_of,
    day_folder,
    output_owner,
    parse_final_name,
    topic_claim,
    type_and_day,
)


def claim_names(logs: ExportLogs, partitions: Iterable[Partition]) -> None:
    """Reserve topics, and the beginnings of file names: two jobs never write the same name or record (S5, S7)."""
    topics = {(partition.topic, partition.topic_id) for partition in partitions}
    paths = {claim_of(logs.space.of(topic)) for topic, _ in topics} | {topic_claim(topic_id) for _, topic_id in topics}
    owners = {path: _owner(logs.storage, path) for path in paths}
    # Looked at first: a job that is refused leaves no claim that keeps others away.
    for path in sorted(paths) if set(owners.values()) <= {None, logs.job.name} else ():
        created = logs.storage.put_if_absent(path, logs.job.name.encode())
        owners[path] = logs.job.name if created else _owner(logs.storage, path)
    for owner in set(owners.values()) - {None, logs.job.name}:
        raise UserError(
            f"the job {owner} already writes the same topic, or the same file names, to {logs.export.path}",
            detail="readers would see every row twice, or files would replace each other",
            hint="give each cluster a name of its own (table.export.cluster), or each job its own root",
        )


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
    logs.state()
    markers = DayMarkers(logs)
    for name in logs.export.types if logs.is_plain else ():
        days = logs.days_of(name)
        opened = [day for day in days if not markers.is_complete(name, day)]
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
    for key, counted in state.current():
        partition = state.partition_of(key)
        if (logs.space.of(partition.topic), partition.number) == (final.space, final.partition):
            incarnation, own = state.incarnations.get(partition.topic, 1), logs.position(name, partition)
            # The log of a type that cannot be read fails its type alone.
            position = own if own is not None else counted.position_of(name) or 0
            return (final.incarnation, final.last_offset) >= (incarnation, position)
    # No such partition has begun: only one of an earlier incarnation of its topic may have files.
    started = {logs.space.of(topic): number for topic, number in state.incarnations.items()}
    return final.incarnation >= started.get(final.space, 0)
