"""The steps of a vacuum: list folders, read what the table says, classify every file by both, delete the dead.

The proof that a file is dead is in its name and in a state that was read after the listing (RULES C7). A room says what
its commits name or can still name; a file of whose name nobody knows anything stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.failpoints import Reach
from penstock.flow.write.names import (
    ClosedName,
    CompactedName,
    ReplayedName,
    StagedName,
    parse_closed_name,
    parse_compacted_name,
    parse_replayed_name,
    parse_staged_name,
)
from penstock.lake.maintenance.reports import Deleted, VacuumReport
from penstock.lake.storage import Entry, Storage


class CanGo(StrEnum):
    """Why a file can go: each room has its reasons."""


class Stays(StrEnum):
    """Why a file stays: each room has its reasons."""


Verdict = CanGo | Stays


@dataclass(frozen=True, slots=True)
class NameRules:
    """What becomes of a file that the table neither holds nor held, by what its name tells."""

    of_slice: Callable[[StagedName], Verdict]
    of_output: Callable[[CompactedName], Verdict]
    of_replay: Callable[[ReplayedName], Verdict]
    of_close: Callable[[ClosedName], Verdict] | None = None
    """None where nothing is closed: such a name is then not ours."""

    def classify(self, path: str) -> Verdict | None:
        """None: not a name of ours."""
        if (staged := parse_staged_name(path)) is not None:
            return self.of_slice(staged)
        if (compacted := parse_compacted_name(path)) is not None:
            return self.of_output(compacted)
        if (replayed := parse_replayed_name(path)) is not None and replayed.run.isdecimal():
            return self.of_replay(replayed)
        if self.of_close is not None and (closed := parse_closed_name(path)) is not None:
            return self.of_close(closed)
        return None


@dataclass(frozen=True, slots=True)
class Classified:
    """The files of one folder that can go, with the reason, and how many stay."""

    url: str
    storage: Storage
    dead: tuple[tuple[Entry, CanGo], ...]
    kept: Counter[str]


def classify_all(
    url: str, storage: Storage, entries: Iterable[Entry], classify: Callable[[Entry], Verdict]
) -> Classified:
    """Sort the files of a folder; they must have been listed before the state that `classify` goes by was read."""
    dead: list[tuple[Entry, CanGo]] = []
    kept: Counter[str] = Counter()
    for entry in entries:
        match classify(entry):
            case CanGo() as reason:
                dead.append((entry, reason))
            case Stays() as reason:
                kept[str(reason)] += 1
    return Classified(url, storage, tuple(dead), kept)


def delete_dead(folders: Sequence[Classified], reach: Reach, *, dry_run: bool = False) -> VacuumReport:
    """Delete what can go, one file after the other; a dry run only tells."""
    deleted: list[Deleted] = []
    for folder in folders:
        for entry, reason in folder.dead:
            deleted.append(Deleted(folder.url, entry.path, entry.size_bytes, str(reason)))
            if not dry_run:
                reach("vacuum_deleting")
                folder.storage.delete(entry.path)
    kept = sum((each.kept for each in folders), Counter[str]())
    return VacuumReport(tuple(deleted), dict(kept), dry_run)
