"""Plain files that the logs of an export cannot know: the logs were lost, or an older copy of them was put back.

The name of a file tells its partition and last offset. A file gets its name after the commit of its type, so none is
beyond the type's position. A job that went on from older positions would write once more what such files hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from penstock.errors import InvariantError, UserError
from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.storage import Entry, NotFoundError
from penstock.logs.log import Partition
from penstock.tables.export.days import open_days
from penstock.tables.export.finishing import read_footer
from penstock.tables.export.logs import LOST, ExportLogs
from penstock.tables.export.names import SUFFIX, claim_of, day_folder, output_owner, parse_final_name, type_and_day
from penstock.tables.export.root_claims import known_owner


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
    reserved = cache(lambda space: known_owner(logs.storage, claim_of(space)))

    def owner(path: str) -> str | None:
        final = parse_final_name(path)
        return output_owner(path) if final is None else reserved(final.space) or logs.job.name

    return owner


def refuse_unknown_files(logs: ExportLogs) -> None:
    """Stop before anything is written twice."""
    if (path := unknown_file(logs)) is not None:
        raise UserError(
            f"{logs.export.path} has data files such as {path} that the logs of the job do not know",
            detail="the logs were lost, or are older than the files: records would be written again",
            hint=f"{LOST}; if table.export.cluster was changed, set it to what it was",
        )


def unknown_file(logs: ExportLogs) -> str | None:
    """A plain file of the job that its logs do not know; days before the first that is not complete are not listed."""
    for name in logs.export.types if logs.is_plain else ():
        try:
            files = own_files(logs, name, _first_open(logs, name))
            paths = [entry.path for entry in files if _is_beyond(logs, name, entry.path)]
            if paths:
                # Another process may have committed them since.
                logs.refreshed(name)
                logs.state()
        except UserError:
            # A folder that cannot be read fails its type alone.
            continue
        for path in paths:
            if _is_beyond(logs, name, path) and _is_of_penstock(logs, path):
                return path
    return None


def _first_open(logs: ExportLogs, name: str) -> str:
    """The folder of the first day that is not complete: start-up must not cost more with every day."""
    days = logs.days_of(name)
    opened = open_days(days, logs.state().watermark_of(name), logs.export.days.complete_after_seconds)
    first = opened[0] if opened else max(days, default=None)
    return "" if first is None else day_folder(name, first)


def _is_beyond(logs: ExportLogs, name: str, path: str) -> bool:
    """Whether the records of a file are beyond what the logs, as they are loaded, have of its type."""
    final = parse_final_name(path)
    if final is None:
        return False
    state = logs.known_state()
    for topic, fingerprint in state.fingerprints.items():
        if logs.space.of(topic) != final.space:
            continue
        incarnation = state.incarnations.get(topic, 1)
        if final.incarnation != incarnation:
            return final.incarnation > incarnation
        for (topic_id, number), known in state.current():
            if number == final.partition and topic_fingerprint(topic_id) == fingerprint:
                own = logs.position(name, Partition(topic, topic_id, number))
                # The log of a type that cannot be read fails its type alone.
                return final.last_offset >= (own if own is not None else known.position_of(name) or 0)
    return True


def _is_of_penstock(logs: ExportLogs, path: str) -> bool:
    """Whether the file says that it is ours: another program may have put a file under such a name."""
    try:
        return bool(read_footer(logs.storage, path).facts)
    except (NotFoundError, InvariantError):
        return False
