"""Plain files: renamed to their final names after the commit that names them (RULES E4).

What is pending is never listed anywhere: a staged file is pending while the log of its type has an active entry with
its name. So any process may finish the work of any other, any number of times: first the final files are deleted that
a compacted file replaces, which its footer names, then the staged file gets its final name. A plain reader may miss
rows of a day for a moment while it is compacted, and never sees one twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.environment import new_batch_id
from penstock.errors import InvariantError, PenstockError
from penstock.flow.route.type_files import FOOTER_KEY
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import parse_compacted_name
from penstock.job.spec import DAY_FOLDER
from penstock.lake.delta.files import ActiveFile
from penstock.storage import NotFoundError, Storage
from penstock.tables.export.logs import STAGED, ExportLogs
from penstock.tables.export.markers import DayMarkers
from penstock.tables.export.names import day_folder
from penstock.tables.export.state import Day

RENAMES_AT_ONCE = 16
DAMAGED_FILE = "the file is damaged or not of Penstock: put a good copy back, or delete its day as a whole"
PROBE = "_probe."
"""How the names of probes begin."""
_RENAMING = frozenset({"", "file", "memory", "hdfs"})


@dataclass(frozen=True, slots=True)
class Rename:
    """A staged file of a type and its final name, both below the root."""

    type: str
    day: Day
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says of itself; without `facts` it is not of Penstock."""

    rows: int
    schema: pa.Schema
    facts: Mapping[str, Any]

    def replaced(self, path: str, size_bytes: int) -> list[dict[str, Any]]:
        """The originals whose rows it holds, as the footer of a compacted file names them."""
        if "replaces" in self.facts:
            return [dict(original) for original in self.facts["replaces"]]
        return [{**self.facts, "path": path, "rows": self.rows, "size_bytes": size_bytes}]


def read_footer(storage: Storage, path: str) -> Footer:
    """Raises `NotFoundError` for a file that is gone and `InvariantError` for one that is no Parquet of ours."""
    try:
        with storage.open_reader(path) as source:
            metadata = pq.read_metadata(source)
        text = (metadata.metadata or {}).get(FOOTER_KEY.encode())
        facts = {} if text is None else json.loads(text)
    except (pa.ArrowException, ValueError) as error:
        raise InvariantError(f"cannot read the footer of {path}", detail=str(error), hint=DAMAGED_FILE) from error
    schema = metadata.schema.to_arrow_schema()
    return Footer(metadata.num_rows, pa.schema([pa.field(column.name, column.type) for column in schema]), facts)


@dataclass(slots=True)
class Finishing:
    """Puts the plain files of one export in their place."""

    logs: ExportLogs
    markers: DayMarkers
    _probed: set[str] = field(default_factory=set)

    @property
    def copies(self) -> bool:
        """Whether a rename of this store is a copy, which may still be under way when its source is deleted."""
        return urlsplit(self.logs.storage.url).scheme.lower() not in _RENAMING

    def pending(self, names: Iterable[str] | None = None) -> list[Rename]:
        """The staged files that active entries name, of these types or of all; logs are read after the listing.

        Of a type whose log cannot be read none is known.
        """
        if not self.logs.is_plain:
            return []
        folder = self.logs.places.staged
        folders = [folder] if names is None else [f"{folder}/{name}" for name in names]
        staged = {entry.path for path in folders for entry in self.logs.storage.list(path)}
        renames: list[Rename] = []
        for name in sorted({path.split("/")[-2] for path in staged} & self.logs.export.types.keys()):
            if (log := self.logs.refreshed(name)) is not None:
                files = (self._rename(name, file.path, *file.values) for file in log.active_files())
                renames += [rename for rename in files if rename.source in staged]
        return renames

    def renames_of(self, name: str, files: Iterable[StagedFile]) -> list[Rename]:
        """The same of files that were just committed."""
        values = [(file.path, file.partition_values) for file in files] if self.logs.is_plain else []
        return [self._rename(name, path, of_file[DAY_FOLDER], of_file[STAGED]) for path, of_file in values]

    def _rename(self, name: str, path: str, day: object, staged: object) -> Rename:
        return Rename(name, str(day), f"{self.logs.places.staged}/{name}/{staged}", path)

    def pending_days(self, name: str) -> set[Day]:
        """The days of a type whose files are not all in their place."""
        return {rename.day for rename in self.pending([name])}

    def source_of(self, name: str, file: ActiveFile) -> str:
        """The name under which an active file was staged."""
        return f"{self.logs.places.staged}/{name}/{file.values[-1]}"

    def finish(self, renames: Sequence[Rename]) -> dict[str, str]:
        """Put files in their place; the types of which one cannot be put there, with the reason."""
        failed: dict[str, str] = {}
        for name in sorted({rename.type for rename in renames}):
            try:
                self.markers.hide(name, {rename.day for rename in renames if rename.type == name})
            except PenstockError as error:
                failed[name] = error.primary
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
        """Rename one file; None once it is done, by whichever process."""
        at_step, storage = self.logs.environment.at_step, self.logs.storage
        try:
            if parse_compacted_name(rename.source) is not None:
                self._delete_replaced(rename)
            at_step("renaming")
            if not storage.rename_if_absent(rename.source, rename.target):
                source_bytes, target_bytes = storage.size_bytes(rename.source), storage.size_bytes(rename.target)
                if source_bytes != target_bytes:
                    return f"{rename.target} is taken by another file"
            # A copy leaves its source, and so does a crash in the middle of a local rename.
            storage.delete(rename.source)
        except NotFoundError:
            # Another process was faster. A file that is lost altogether is `verify`'s to find.
            return None
        except PenstockError as error:
            return error.primary
        return None

    def _delete_replaced(self, rename: Rename) -> None:
        """Delete what a compacted file replaces, before it becomes visible."""
        storage = self.logs.storage
        for path in read_footer(storage, rename.source).facts["inputs"]:
            self.logs.environment.at_step("removing")
            storage.delete(path)
        self.logs.environment.at_step("removed")

    # probes

    def probe(self, name: str, days: Iterable[Day] | None = None) -> str | None:
        """Why plain files cannot be put into the folders of these days, or of the type; None if they can."""
        folders = [name] if days is None else [day_folder(name, day) for day in days]
        for folder in sorted({*folders} - self._probed) if self.logs.is_plain else ():
            path = f"{folder}/{PROBE}{new_batch_id()}"
            try:
                self.logs.storage.put(path, b"")
                self.logs.storage.delete(path)
            except PenstockError as error:
                return error.primary
            self._probed.add(folder)
        return None

    def forget_probes(self, name: str) -> None:
        """A type that failed is probed again before its next files are committed."""
        self._probed = {folder for folder in self._probed if folder.split("/")[0] != name}
