"""Plain files that the logs of an export cannot know: the logs were lost, or an older copy of them was put back.

The name of a file tells its partition and last offset. A file gets its name after the commit of its type, so none is
beyond the type's position. A job that went on from older positions would write once more what such files hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from penstock.errors import InvariantError, UserError
from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.storage import Entry, NotFoundError
from penstock.logs.log import Partition
from penstock.tables.export.days import needed_ms
from penstock.tables.export.finishing import read_footer
from penstock.tables.export.logs import LOST, ExportLogs
from penstock.tables.export.names import SUFFIX, claim_of, day_folder, output_owner, parse_final_name, type_and_day
from penstock.tables.export.root_claims import known_owner
from penstock.tables.export.state import ExportState

FOOTERS_READ_MAX = 100
"""Of files that look as if the logs did not know them: more of them prove nothing more."""


def own_files(logs: ExportLogs, folder: str, after: str = "") -> Iterator[Entry]:
    """The plain data files below a folder that may be the job's: no other job has reserved their names."""
    owner = cache(lambda space: known_owner(logs.storage, claim_of(space)))
    for entry in logs.storage.list(folder, after):
        name = parse_final_name(entry.path)
        own = output_owner(entry.path) == logs.job.name if name is None else owner(name.space) in (None, logs.job.name)
        if own and type_and_day(entry.path) is not None:
            yield entry


def visible_files(logs: ExportLogs, name: str) -> Iterator[str]:
    """The files below the folder of a type that readers of plain files see, without those of other jobs."""
    owner = cache(lambda space: known_owner(logs.storage, claim_of(space)))
    for entry in logs.storage.list(name):
        final = parse_final_name(entry.path)
        job = output_owner(entry.path) if final is None else owner(final.space)
        hidden = any(part.startswith(("_", ".")) for part in entry.path.split("/"))
        if job in (None, logs.job.name) and entry.path.endswith(SUFFIX) and not hidden:
            yield entry.path


def refuse_unknown_files(logs: ExportLogs) -> None:
    """Stop before anything is written twice. Lists the days from the first on that a type has not completed."""
    if not logs.is_plain:
        return
    for name in logs.export.all_types:
        for path in _suspicious(logs, name):
            if _is_of_penstock(logs, path):
                raise UserError(
                    f"{logs.export.path} has data files such as {path} that the logs of the job do not know",
                    detail="the logs were lost, or are older than the files: records would be written again",
                    hint=LOST,
                )


def _suspicious(logs: ExportLogs, name: str) -> list[str]:
    """Files of a type beyond its position."""
    try:
        paths = [entry.path for entry in own_files(logs, name, _first_open(logs, name))]
        state = logs.state()
        paths = [path for path in paths if _is_beyond(logs, state, name, path)]
        if paths and (log := logs.find_type_log(name)) is not None:
            # Another process may have committed them since.
            log.refresh()
    except UserError:
        # A folder that cannot be read fails its type alone.
        return []
    state = logs.state() if paths else state
    return [path for path in paths if _is_beyond(logs, state, name, path)][:FOOTERS_READ_MAX]


def _first_open(logs: ExportLogs, name: str) -> str:
    """The folder of the first day that is not complete: start-up must not cost more with every day."""
    mark_ms, days = logs.state().watermark_of(name), logs.days_of(name)
    after = logs.export.days.complete_after_seconds
    opened = [day for day, late_ms in days.items() if mark_ms is None or mark_ms < needed_ms(day, late_ms, after)]
    first = min(opened, default=max(days, default=None))
    return "" if first is None else day_folder(name, first)


def _is_beyond(logs: ExportLogs, state: ExportState, name: str, path: str) -> bool:
    """Whether the records of a file are beyond what the logs have of its type."""
    final = parse_final_name(path)
    if final is None:
        return False
    for topic, fingerprint in state.fingerprints.items():
        if logs.space.of(topic) != final.space:
            continue
        incarnation = state.incarnations.get(topic, 1)
        if final.incarnation != incarnation:
            return final.incarnation > incarnation
        for (topic_id, number), here in state.current():
            if number == final.partition and topic_fingerprint(topic_id) == fingerprint:
                own = logs.position(name, Partition(topic, topic_id, number))
                return final.last_offset >= max(own or 0, here.position_of(name) or 0)
    return True


def _is_of_penstock(logs: ExportLogs, path: str) -> bool:
    """Whether the file says that it is ours: another program may have put a file under such a name."""
    try:
        return bool(read_footer(logs.storage, path).facts)
    except (NotFoundError, InvariantError):
        return False
