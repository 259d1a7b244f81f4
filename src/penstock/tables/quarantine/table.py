"""The quarantine of a job: a Delta table that is filled after each data commit, never twice for one offset (RULES Q1).

It lies in a folder of its own for each job and incarnation of the job's table. A data commit lists the quarantine
files of its slices and leaves a mark; while the position that the quarantine keeps is below the mark, listed files are
missing and are appended before the partition is planned again. Several logs may list files: that of the job, and one
for each type of an export. The quarantine keeps a position of each partition for each log (`quarantine_key`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import StagedName, parse_staged_name
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.lake.delta.keys import is_position_of, position_key, quarantine_key, replay_key
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.provenance import Provenance, commits_of
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import Change, Table, find_table, open_or_create
from penstock.lake.delta.vacuum import Kept, by_position, by_run, by_version
from penstock.lake.maintenance.leftovers import NameRules, Verdict
from penstock.lake.proposal import AcceptedPart, SlicePart
from penstock.lake.storage import open_storage
from penstock.logs.log import Partition

_FILES_SHOWN_MAX = 5
_MARK = "#quarantine"


class QuarantineGoneError(UserError):
    """Quarantined records were deleted, and only their files can bring them back."""

    def __init__(self, job: str, url: str, primary: str, detail: str) -> None:
        hint = f"restore the folder {url}; or accept that {job} loses these records: `penstock quarantine discard`"
        super().__init__(primary, detail=detail, hint=hint)


@dataclass(frozen=True, slots=True)
class Listings:
    """Where the quarantine of a job's table lies, and what the commits of the table list for it."""

    url: str
    marks: Mapping[str, int]
    """Up to where commits list quarantine files, by the keys of the quarantine's positions."""
    replay_run: int
    """The last replay run that a commit carries."""


def listed_marks(data: Table, log: str = "") -> dict[str, int]:
    """Up to where the commits of the job list quarantine files in one of its logs, as in `Listings`."""
    suffix = f"#type/{log}" if log else ""
    listed = {key.removesuffix(_MARK): end for key, end in data.transactions().items() if key.endswith(_MARK)}
    return {f"{key}{suffix}": end for key, end in listed.items() if is_position_of(data.job, key)}


def open_quarantine(job: JobSpec, url: str, environment: Environment | None = None) -> Table | None:
    """The quarantine table of a job, or None while there never was a bad record."""
    return find_table(_place(job, url), job.name, environment)


def create_quarantine(job: JobSpec, url: str, environment: Environment) -> Table:
    return open_or_create(_place(job, url), job.name, QUARANTINE_SCHEMA, NewColumnPolicy.ADD, environment)


def quarantine_rules(
    quarantine: Table,
    marks: Mapping[str, int],
    position_of: Callable[[Partition], int | None],
    rule: Callable[[StagedName, int | None], Verdict] = by_position,
) -> NameRules:
    """The rules by which vacuum deletes files in the folder of a quarantine (RULES C7).

    Files that a commit listed stay until they are appended. `position_of` gives the position of a partition, of which
    only topic id and number are known, and `rule` says whether a commit may still list a file: `by_position` where the
    positions of one log decide, `by_end` with the lowest position of a partition where several logs do.
    """
    behind = [key for key, mark in marks.items() if (quarantine.transaction(key) or 0) < mark]
    pending = {key.partition("#")[0] for key in behind}
    run_over = quarantine.transaction(replay_key(quarantine.job)) or 0

    def of_slice(name: StagedName) -> Verdict:
        partition = Partition("", name.topic_id, name.partition)
        if position_key(quarantine.job, partition) in pending:
            return Kept.PENDING
        return rule(name, position_of(partition))

    return NameRules(of_slice, by_version(quarantine), lambda name: by_run(name, run_over))


@dataclass(frozen=True, slots=True)
class Listed:
    """Quarantine files that a data commit listed for one slice."""

    key: str
    """Of the quarantine's position."""
    end: int
    """Of the slice; it grows with every listing of a partition in a log."""
    files: tuple[StagedFile, ...]


class Quarantine:
    """Appends what data commits list to the quarantine table, which is created with the first bad record.

    `home` is the log with the positions of the job: its id tells the quarantine from that of an earlier incarnation.
    `folder` is where quarantines of the job lie, if not in the folder of `home`. Tasks write bad records to `url`.
    """

    def __init__(self, job: JobSpec, home: Table, environment: Environment, folder: str = "") -> None:
        self.url = f"{folder}/{home.id}" if folder else home.quarantine_url
        self._job = job
        self._environment = environment
        self._table: Table | None = None

    def table(self) -> Table | None:
        """The quarantine table, or None while there never was a bad record."""
        if self._table is None:
            self._table = open_quarantine(self._job, self.url, self._environment)
        return self._table

    def append(self, data: Table, accepted: Iterable[AcceptedPart], log: str = "") -> None:
        """Append the quarantine files of slices that were just committed to `data`.

        `log` is empty for the log of the job, and the name of the type for the log of a type.
        """
        self.append_listed(
            Listed(quarantine_key(data.job, part.partition, log), part.piece.end, part.quarantine_files)
            for part in accepted
            if isinstance(part, SlicePart) and part.quarantine_files
        )

    def append_missing(self, data: Table, partitions: Iterable[Partition], log: str = "") -> None:
        """Append what earlier commits to `data`, as it is loaded, list and no process appended.

        Raises `QuarantineGoneError`, and appends nothing, if a listed file does not exist any more.
        """
        keys = {place: quarantine_key(data.job, place, log) for place in partitions}
        state = data.known_state(keys)
        marks = {place: state.of(place).quarantine_mark or 0 for place in keys}
        missing = {place for place, mark in marks.items() if self.lacks(keys[place], mark)}
        if not missing:
            return
        if (table := self.table()) is not None:
            # Another process may have appended them, and a replay may have removed them again.
            table.refresh()
            missing = {place for place in missing if self.lacks(keys[place], marks[place])}
        with library_errors(data.spec.path):
            history = data.handle.history()
        slices = [
            piece
            for _, commit in commits_of(history, data.job)
            for piece in commit.slices
            if piece.place in missing and piece.quarantine and self.lacks(keys[piece.place], piece.end)
        ]
        for place in sorted(missing - {piece.place for piece in slices if piece.end == marks[piece.place]}):
            raise QuarantineGoneError(
                data.job,
                self.url,
                f"quarantined records of {place} up to offset {marks[place]} cannot be found",
                f"they are not in {self.url}, and the log of {data.spec.path} no longer has the commit that lists them",
            )
        listed = [Listed(keys[piece.place], piece.end, piece.files) for piece in slices]
        self.refuse_deleted(listed)
        self.append_listed(sorted(listed, key=lambda slice_files: slice_files.end))

    def lacks(self, key: str, end: int) -> bool:
        """Whether files of a slice that ends there have yet to be appended."""
        table = self.table()
        return (0 if table is None else table.transaction(key) or 0) < end

    def append_listed(self, listed: Iterable[Listed]) -> None:
        """Append the files that are not there yet, in one commit."""
        pending = list(listed)
        if not pending:
            return
        table = self._table = self.table() or create_quarantine(self._job, self.url, self._environment)

        def decide() -> Change | None:
            new = [slice_files for slice_files in pending if self.lacks(slice_files.key, slice_files.end)]
            if not new:
                return None
            return Change(
                actions=[table.add_action(file) for slice_files in new for file in slice_files.files],
                transactions={slice_files.key: slice_files.end for slice_files in new},
                metadata=Provenance(kind="quarantine", job=self._job.name).metadata,
            )

        table.swap(decide)

    def refuse_deleted(self, listed: Iterable[Listed]) -> None:
        """Raise `QuarantineGoneError` if files that an earlier process listed were deleted since."""
        existing = {entry.path for entry in open_storage(self.url, self._job.table.storage_options).list()}
        deleted = [file for slice_files in listed for file in slice_files.files if file.path not in existing]
        if deleted:
            shown = "; ".join(sorted(map(_described, deleted))[:_FILES_SHOWN_MAX])
            raise QuarantineGoneError(
                self._job.name,
                self.url,
                f"{sum(file.rows for file in deleted)} quarantined records of {self._job.name} were deleted",
                f"{len(deleted)} files are not in {self.url} any more: {shown}"
                + ("; and others" if len(deleted) > _FILES_SHOWN_MAX else ""),
            )


def _place(job: JobSpec, url: str) -> TablePlace:
    return TablePlace(path=url, storage_options=job.table.storage_options)


def _described(file: StagedFile) -> str:
    name = parse_staged_name(file.path)
    offsets = "" if name is None else f" of offsets {name.start} to {name.end - 1}"
    return f"{file.rows} records{offsets} of {file.topic}/{file.partition}"
