"""Plain files of an export: their renames after the commit that names them, and to which job a file belongs.

What is pending is never listed anywhere: a staged file is pending while the log of its type has an active entry with
its name. So any process may finish the work of any other, any number of times: first the final files are deleted that
a compacted file replaces, which its footer names, then the staged file gets its final name. A plain reader may miss
rows of a day for a moment while it is compacted, and never sees one twice (RULES E4).

The name of a file shows its partition and last offset. A file gets its name after the commit of its type, so none is
beyond the type's position: a job that went on from older positions would write once more what such files hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from penstock.environment import new_batch_id
from penstock.errors import InvariantError, PenstockError, UserError
from penstock.flow.route.footers import read_footer
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import parse_compacted_name
from penstock.job.spec import DAY_FOLDER
from penstock.lake.delta.files import ActiveFile
from penstock.logs.log import Partition
from penstock.storage import Entry, NotFoundError, Storage
from penstock.tables.export.logs import LOST, STAGED, ExportLogs
from penstock.tables.export.markers import DayMarkers
from penstock.tables.export.names import CLAIMS, SUFFIX, claim_of, day_folder, output_owner, parse_final_name
from penstock.tables.export.state import Day

RENAMES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Rename:
    """A staged file of a type and its final name, both below the root."""

    type: str
    day: Day
    source: str
    target: str


@dataclass(slots=True)
class Finishing:
    """Renames the staged plain files of one export to their final names."""

    logs: ExportLogs
    markers: DayMarkers
    writable: set[str] = field(default_factory=set)
    """Types whose folders can be written; one that fails is probed again before its next files are committed."""

    def pending(self, names: Iterable[str] | None = None) -> list[Rename]:
        """The staged files that active entries name, of these types or of all; logs are read after the listing.

        A type whose log cannot be read has none.
        """
        if not self.logs.is_plain:
            return []
        folder = self.logs.staged
        folders = [folder] if names is None else [f"{folder}/{name}" for name in names]
        staged = {entry.path for path in folders for entry in self.logs.storage.list(path)}
        renames: list[Rename] = []
        for name in sorted({path.split("/")[-2] for path in staged} & self.logs.export.types.keys()):
            if (log := self.logs.find_type_log(name, refresh=True)) is not None:
                files = (self._rename(name, file.path, *file.values) for file in log.active_files())
                renames += [rename for rename in files if rename.source in staged]
        return renames

    def renames_of(self, name: str, files: Iterable[StagedFile]) -> list[Rename]:
        """The same of files that were just committed."""
        values = [(file.path, file.partition_values) for file in files] if self.logs.is_plain else []
        return [self._rename(name, path, of_file[DAY_FOLDER], of_file[STAGED]) for path, of_file in values]

    def _rename(self, name: str, path: str, day: object, staged: object) -> Rename:
        return Rename(name, str(day), f"{self.logs.staged}/{name}/{staged}", path)

    def source_of(self, name: str, file: ActiveFile) -> str:
        """The name under which an active file was staged."""
        return f"{self.logs.staged}/{name}/{file.values[-1]}"

    def finish(self, renames: Sequence[Rename]) -> dict[str, str]:
        """Rename files; returns the types of which a file cannot be renamed, with the reason."""
        failed: dict[str, str] = {}
        for name in sorted({rename.type for rename in renames}):
            try:
                self.markers.hide(name, {rename.day for rename in renames if rename.type == name})
            except PenstockError as error:
                failed[name] = error.reason
        ready = [rename for rename in renames if rename.type not in failed]
        if len(ready) < RENAMES_AT_ONCE:
            reasons = [self._finish(rename) for rename in ready]
        else:
            with ThreadPoolExecutor(RENAMES_AT_ONCE) as pool:
                reasons = list(pool.map(self._finish, ready))
        failed |= {rename.type: reason for rename, reason in zip(ready, reasons, strict=True) if reason is not None}
        if renames:
            self.logs.environment.at_step("renamed")
        return failed

    def _finish(self, rename: Rename) -> str | None:
        """Rename one file; None if this or another process has renamed it, otherwise the reason."""
        at_step, storage = self.logs.environment.at_step, self.logs.storage
        try:
            if parse_compacted_name(rename.source) is not None:
                # The files that it replaces go before it becomes visible.
                for path in read_footer(storage, rename.source)[0].inputs:
                    at_step("removing")
                    storage.delete(path)
                at_step("removed")
            at_step("renaming")
            if not storage.rename_if_absent(rename.source, rename.target):
                source_bytes, target_bytes = storage.size_bytes(rename.source), storage.size_bytes(rename.target)
                if source_bytes != target_bytes:
                    return f"{rename.target} exists already and is another file"
            # A copy leaves its source, and so does a crash in the middle of a local rename.
            storage.delete(rename.source)
        except NotFoundError:
            # Another process renamed it first. `verify` reports a file that was lost.
            return None
        except PenstockError as error:
            return error.reason
        return None

    def probe(self, name: str) -> str | None:
        """Why plain files cannot be put into the folder of a type; None if they can."""
        if name in self.writable or not self.logs.is_plain:
            return None
        path = f"{name}/_probe.{new_batch_id()}"
        try:
            self.logs.storage.put(path, b"")
            self.logs.storage.delete(path)
        except PenstockError as error:
            return error.reason
        self.writable.add(name)
        return None


# names and topics that jobs reserve below a root


def claim_names(logs: ExportLogs, partitions: Iterable[Partition]) -> None:
    """Reserve topics, and the beginnings of file names: two jobs never write the same name or record (S5, S7)."""
    topics = {(partition.topic, partition.topic_id) for partition in partitions}
    paths = {claim_of(logs.space_of(topic)) for topic, _ in topics}
    paths |= {f"{CLAIMS}/topics/{topic_id}" for _, topic_id in topics}
    owners = {path: _owner(logs.storage, path) for path in paths}
    # Read first: a job that is refused leaves no claim that blocks others.
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


# owners of files


def visible_files(logs: ExportLogs, folder: str, after: str = "") -> Iterator[Entry]:
    """The files below a folder that readers of plain files see, without those whose names another job has reserved."""
    reserved = cache(lambda space: _owner(logs.storage, claim_of(space)))
    for entry in logs.storage.list(folder, after):
        hidden = any(part.startswith(("_", ".")) for part in entry.path.split("/"))
        if entry.path.endswith(SUFFIX) and not hidden:
            final = parse_final_name(entry.path)
            owner = output_owner(entry.path) if final is None else reserved(final.space)
            if owner in (None, logs.job.name):
                yield entry


def refuse_unnamed_files(logs: ExportLogs) -> None:
    """Stop before rows are written twice; days before the first that is not complete are not listed."""
    logs.state()
    markers, paths = DayMarkers(logs), []
    for name in logs.export.types if logs.is_plain else ():
        days = logs.days_of(name)
        opened = [day for day in days if not markers.is_complete(name, day)]
        first = min(opened, default=max(days, default=None))
        # A folder that cannot be read fails its type alone.
        with suppress(UserError):
            files = visible_files(logs, name, "" if first is None else day_folder(name, first))
            paths += [(name, entry.path) for entry in files if _is_beyond(logs, name, entry.path)]
    if paths:
        # Another process may have committed them meanwhile.
        logs.type_logs(refresh=True)
        logs.state()
    for path in (path for name, path in paths if _is_beyond(logs, name, path) and _is_of_penstock(logs, path)):
        raise UserError(
            f"{logs.export.path} has data files such as {path} that the logs of the job do not name",
            detail="the logs were lost, or are older than the files: records would be written again",
            hint=f"{LOST}; if table.export.cluster was changed, set it to what it was",
        )


def _is_of_penstock(logs: ExportLogs, path: str) -> bool:
    """Whether Penstock wrote a file, by its footer: other programs may use such names too."""
    with suppress(NotFoundError, InvariantError):
        read_footer(logs.storage, path)
        return True
    return False


def _is_beyond(logs: ExportLogs, name: str, path: str) -> bool:
    """Whether the records of a file are beyond what the logs, as they are loaded, have of its type."""
    final, state = parse_final_name(path), logs.cached_state()
    if final is None:
        return False
    for key, counted in state.started():
        partition = state.partition_of(key)
        if (logs.space_of(partition.topic), partition.number) == (final.space, final.partition):
            own = logs.counted(name, partition).position
            # The log of a type that cannot be read fails its type alone.
            return final.last_offset >= (own if own is not None else counted.position_of(name) or 0)
    # No such partition has begun.
    return True
