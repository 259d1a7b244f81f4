"""The quarantine of a job: a Delta table that is filled after each data commit, never twice for one offset (RULES Q1).

It lies in a folder of its own for each job and incarnation of the job's table. A data commit lists the quarantine
files of its slices and leaves a mark; while the position that the quarantine keeps is below the mark, listed files are
missing and are appended before the partition is planned again. Several logs may list files: that of the job, and one
for each type of an export. The quarantine keeps a position of each partition for each log (`quarantine_key`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import StagedName
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import is_position_of, position_key, quarantine_key, replay_key
from penstock.lake.delta.opening import find_table, open_or_create
from penstock.lake.delta.provenance import CommitSlice, Provenance
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import Change, DeltaLog
from penstock.lake.delta.vacuum import KeptReason, NameRules, Verdict, by_position, by_run, by_version
from penstock.lake.proposal import AcceptedPart, SlicePart
from penstock.logs.log import Partition
from penstock.quarantine.rows import count_rows
from penstock.storage import open_storage

_LOSSES_SHOWN_MAX = 5
_MARK = "#quarantine"


class QuarantineGoneError(UserError):
    """Quarantined records were deleted; only restoring their files recovers them."""

    def __init__(self, job: str, url: str, losses: Sequence[str]) -> None:
        super().__init__(
            f"quarantined records of {job} were deleted",
            detail=f"{len(losses)} slices lost records, the first: {'; '.join(losses[:_LOSSES_SHOWN_MAX])}",
            hint=f"restore the folder {url}; or accept that {job} loses them: `penstock quarantine discard`",
        )


@dataclass(frozen=True, slots=True)
class Listings:
    """Where the quarantine of a job's table lies, and what the commits of the table list for it."""

    url: str
    marks: Mapping[str, int]
    """Up to where commits list quarantine files, by the keys of the quarantine's positions."""
    replay_run: int
    """The last replay run that a commit carries."""


def listed_marks(data: DeltaLog, log: str = "") -> dict[str, int]:
    """Up to where the commits of the job list quarantine files in one of its logs, as in `Listings`."""
    suffix = f"#type/{log}" if log else ""
    listed = {key.removesuffix(_MARK): end for key, end in data.transactions().items() if key.endswith(_MARK)}
    return {f"{key}{suffix}": end for key, end in listed.items() if is_position_of(data.job, key)}


def open_quarantine(job: JobSpec, url: str, environment: Environment | None = None) -> DeltaLog | None:
    """The quarantine table of a job, or None before the first bad record."""
    return find_table(TablePlace(path=url, storage_options=job.table.storage_options), job.name, environment)


def create_quarantine(job: JobSpec, url: str, environment: Environment) -> DeltaLog:
    place = TablePlace(path=url, storage_options=job.table.storage_options)
    return open_or_create(place, job.name, QUARANTINE_SCHEMA, "add", environment)


def keys_behind(quarantine: DeltaLog | None, numbers: Mapping[str, int]) -> list[str]:
    """Those keys whose number in the quarantine is below the given one."""
    stored = {} if quarantine is None else quarantine.transactions()
    return [key for key, number in numbers.items() if stored.get(key, 0) < number]


def quarantine_rules(
    quarantine: DeltaLog,
    marks: Mapping[str, int],
    position_of: Callable[[Partition], int | None],
    rule: Callable[[StagedName, int | None], Verdict] = by_position,
) -> NameRules:
    """The rules by which vacuum deletes files in the folder of a quarantine (RULES C7).

    Files that a commit listed stay until they are appended. `position_of` gives the position of a partition, of which
    only topic id and number are known, and `rule` whether a commit may still list a file: `by_position` where the
    positions of one log decide, `by_end` with the lowest position of a partition where several logs do.
    """
    pending = {key.partition("#")[0] for key in keys_behind(quarantine, marks)}
    run_over = quarantine.transaction(replay_key(quarantine.job)) or 0

    def of_slice(name: StagedName) -> Verdict:
        partition = Partition("", name.topic_id, name.partition)
        if position_key(quarantine.job, partition) in pending:
            return KeptReason.PENDING
        return rule(name, position_of(partition))

    return NameRules(of_slice, by_version(quarantine), lambda name: by_run(name, run_over))


def unappended_slices(data: DeltaLog, quarantine: DeltaLog | None, log: str = "") -> list[CommitSlice]:
    """Slices of the job's commits to one of its logs whose quarantine files are not appended yet (RULES Q1)."""
    appended: Mapping[str, int] = {} if quarantine is None else quarantine.transactions()
    return [
        piece
        for commit in data.commits()
        for piece in commit.slices
        if piece.files and piece.end > appended.get(quarantine_key(data.job, piece.place, log), 0)
    ]


Listed = tuple[str, int, tuple[StagedFile, ...]]
"""The key of the quarantine's position, the end of a slice, and the quarantine files that a commit lists for it."""


class Quarantine:
    """Appends what data commits list to the quarantine table, which is created with the first bad record.

    `home` is the log with the positions of the job, whose folder has the quarantine. Tasks write bad records to `url`.
    `log` names a log that lists files: empty for that of the job, else its type.
    """

    def __init__(self, job: JobSpec, home: DeltaLog, environment: Environment) -> None:
        self.url = home.quarantine_url
        self._job = job
        self._environment = environment
        self._table: DeltaLog | None = None

    def table(self) -> DeltaLog | None:
        """The quarantine table, or None before the first bad record."""
        if self._table is None:
            self._table = open_quarantine(self._job, self.url, self._environment)
        return self._table

    def append(
        self, accepted: Iterable[AcceptedPart], types: Mapping[str, Iterable[AcceptedPart]] | None = None
    ) -> None:
        """Append the quarantine files of slices that were just committed, to the job's log and to those of types."""
        self.append_listed(
            (quarantine_key(self._job.name, part.partition, log), part.piece.end, part.quarantine_files)
            for log, parts in {"": accepted, **(types or {})}.items()
            for part in parts
            if isinstance(part, SlicePart) and part.quarantine_files
        )

    def append_missing(self, data: DeltaLog, partitions: Iterable[Partition], log: str = "") -> None:
        """Append the files that earlier commits to `data`, as loaded, list and no process has appended.

        Raises `QuarantineGoneError`, and appends nothing, if a listed file no longer exists.
        """
        keys = {place: quarantine_key(data.job, place, log) for place in partitions}
        state = data.cached_state(keys)
        marks = {key: state.of(place).quarantine_mark or 0 for place, key in keys.items()}
        if not keys_behind(self.table(), marks):
            return
        if (table := self.table()) is not None:
            # Another process may have appended them, and a replay may have removed them again.
            table.refresh()
        behind = keys_behind(table, marks)
        ends = {(place, marks[key]) for place, key in keys.items() if key in behind}
        unappended = [piece for piece in unappended_slices(data, table, log) if keys.get(piece.place) in behind]
        self._refuse_losses(unappended, ends)
        self.append_listed(
            [(keys[piece.place], piece.end, piece.files) for piece in sorted(unappended, key=lambda piece: piece.end)]
        )

    def _refuse_losses(self, slices: Sequence[CommitSlice], ends: set[tuple[Partition, int]]) -> None:
        """Never append files that do not exist: the folder, or a part of it, may have been deleted."""
        existing = {entry.path for entry in open_storage(self.url, self._job.table.storage_options).list()}
        losses = [
            f"{piece.totals.quarantined} records of {piece.place}, offsets {piece.start} to {piece.end - 1}"
            for piece in slices
            if any(file.path not in existing for file in piece.files)
        ]
        for place, end in sorted(ends - {(piece.place, piece.end) for piece in slices}):
            losses.append(f"records of {place} up to offset {end}, whose listing is not in the table's history")
        if losses:
            raise QuarantineGoneError(self._job.name, self.url, losses)

    def append_listed(self, listed: Iterable[Listed]) -> None:
        """Append the files that are not there yet, in one commit."""
        pending = list(listed)
        if not pending:
            return
        table = self._table = self.table() or create_quarantine(self._job, self.url, self._environment)

        def decide() -> Change | None:
            new = [(key, end, files) for key, end, files in pending if end > (table.transaction(key) or 0)]
            if not new:
                return None
            return Change(
                actions=[table.add_action(file) for _, _, files in new for file in files],
                transactions={key: end for key, end, _ in new},
                metadata=Provenance(kind="quarantine", job=self._job.name).metadata,
            )

        table.swap(decide)


@dataclass(frozen=True, slots=True)
class DiscardReport:
    """What was, or would be, discarded."""

    rows: int = 0
    unappended: bool = False
    """Whether commits of the table list further records, which were never appended or were deleted."""


def discard(job: JobSpec, listings: Listings | None, environment: Environment, dry_run: bool = False) -> DiscardReport:
    """Discard all quarantined records of the job in one commit to the quarantine; the data is only read.

    Afterwards what the table's commits listed counts as appended, also records that were deleted with the folder of the
    quarantine. A crash leaves everything as it was, or all of it done. No `listings`: there is no table.
    """
    if listings is None:
        return DiscardReport()
    quarantine = open_quarantine(job, listings.url, environment)
    report = _discardable(quarantine, listings)
    if dry_run or report == DiscardReport():
        return report
    table = quarantine or create_quarantine(job, listings.url, environment)
    numbers = {**listings.marks, replay_key(job.name): listings.replay_run}

    def decide() -> Change | None:
        nonlocal report
        report = _discardable(table, listings)
        raised = {key: numbers[key] for key in keys_behind(table, numbers)}
        removals = [table.remove_action(file) for file in table.active_files()]
        if not removals and not raised:
            return None
        return Change([*removals], raised, Provenance(kind="discarded", job=job.name, rows=report.rows).metadata)

    table.swap(decide, "discard_checked")
    environment.at_step("discarded")
    return report


def _discardable(quarantine: DeltaLog | None, listings: Listings) -> DiscardReport:
    rows = 0 if quarantine is None else count_rows(quarantine)
    return DiscardReport(rows, unappended=bool(keys_behind(quarantine, listings.marks)))
