"""Compaction as a chore of the running job: it merges its own small files, a bounded part at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.environment import Environment
from penstock.errors import PenstockError
from penstock.events import CompactionFailed, FilesCompacted
from penstock.job.spec import JobSpec
from penstock.lake.compaction import CompactionLimits
from penstock.tables.kind import CompactRequest, Kind

COMMITS_PER_CHECK = 64
"""How many commits lie between two checks for small files."""
EFFORT = CompactionLimits(alike_min=8, bytes_max=256 * 1024**2)
"""The limits of one turn, during which new batches wait."""


@dataclass(frozen=True, slots=True)
class Compact:
    """Merge small files of the table as it is at this version."""

    name: ClassVar[str] = "compact"
    batch: ClassVar[None] = None
    version: int


class Compaction:
    """Looks for small files whenever the version of the table passes a multiple of `COMMITS_PER_CHECK`.

    So many short runs check as often as one long run, and processes share no state.
    """

    def __init__(self, job: JobSpec, kind: Kind, environment: Environment) -> None:
        self._job = job
        self._kind = kind
        self._environment = environment
        self._enabled = job.on.small_files == "compact"
        self._version: int | None = None
        """The version of the table at the last check."""
        self._more = False
        """Whether the last turn left something to do."""

    def due(self, version: int) -> list[Compact]:
        if self._version is None:
            self._version = version
        passed = version // COMMITS_PER_CHECK > self._version // COMMITS_PER_CHECK
        return [Compact(version)] if self._enabled and (passed or self._more) else []

    def perform(self, chore: Compact) -> None:
        """Merge some of the small files. A table that cannot be compacted does not stop its job."""
        self._version, self._more = chore.version, False
        try:
            report = self._kind.compact(self._job, CompactRequest(effort=EFFORT), self._environment, None)
        except PenstockError as error:
            self._environment.listener.event(CompactionFailed(reason=error.primary, detail=error.detail))
            return
        self._more = report.left > 0 and report.files_removed > 0
        if report.files_removed:
            self._environment.listener.event(
                FilesCompacted(report.files_removed, report.files_added, report.size_bytes_after)
            )
