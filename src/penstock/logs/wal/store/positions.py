"""Which jobs read the log, and how far each has committed: nothing that one of them still needs is trimmed (RULES A1).

A job is registered for a topic with its first position there. From then on it holds every partition of the topic: one
without a position counts as unread from the beginning. A name belongs to one table (`owner`), because two jobs of the
same name would take each other's positions for their own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from penstock.logs.wal.errors import UnknownTopicError, WalDamagedError, WalRefusedError
from penstock.logs.wal.store.files import sync_folder, write_whole

VERSION = 1
_SUFFIX = ".json"

Way: TypeAlias = Literal["advance", "register", "reset"]
"""Advance: what was committed, never back. Register: only where nothing is known. Reset: where a job begins anew."""
Place = tuple[str, str, int]
"""Topic, topic id and number of a partition."""


class TopicPositions(msgspec.Struct, frozen=True):
    """The committed positions of one life of a topic, by partition."""

    topic: str
    topic_id: str
    offsets: dict[int, int]


class JobFile(msgspec.Struct, frozen=True):
    """A registered job as it is kept."""

    version: int
    owner: str
    topics: list[TopicPositions]


@dataclass(slots=True)
class _Job:
    owner: str
    positions: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reported:
    """Which positions moved, and why others did not; equal ones are in neither."""

    moved: Mapping[Place, int]
    refused: Mapping[Place, str]


class JobPositions:
    """The registered jobs, one file each; any thread may call."""

    def __init__(self, folder: Path, jobs_max: int) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._jobs_max = jobs_max
        self._lock = threading.Lock()
        self._jobs = {path.name.removesuffix(_SUFFIX): _read(path) for path in sorted(folder.glob(f"*{_SUFFIX}"))}

    def all(self) -> dict[str, dict[str, dict[int, int]]]:
        """The positions of every job, by topic and partition."""
        with self._lock:
            return {
                name: {topic: dict(offsets) for (topic, _), offsets in job.positions.items()}
                for name, job in self._jobs.items()
            }

    def of(self, name: str) -> dict[Place, int]:
        """The positions of a job; none if it is not registered."""
        with self._lock:
            job = self._jobs.get(name)
            known = job.positions.items() if job is not None else ()
            return {(*topic, number): offset for topic, offsets in known for number, offset in offsets.items()}

    def report(self, name: str, owner: str, positions: Mapping[Place, int], way: Way = "advance") -> Reported:
        """Note positions, durably."""
        with self._lock:
            job = self._known(name, owner)
            moved: dict[Place, int] = {}
            refused: dict[Place, str] = {}
            for place, offset in positions.items():
                before = job.positions.get(place[:2], {}).get(place[2])
                if before is None or way == "reset" or (way == "advance" and offset > before):
                    moved[place] = offset
                elif way == "advance" and offset < before:
                    refused[place] = f"already at {before}"
            for (topic, topic_id, number), offset in moved.items():
                job.positions.setdefault((topic, topic_id), {})[number] = offset
            if moved:
                self._jobs[name] = job
                self._write(name, job)
            return Reported(moved, refused)

    def _known(self, name: str, owner: str) -> _Job:
        job = self._jobs.get(name)
        if job is None:
            if len(self._jobs) >= self._jobs_max:
                raise WalRefusedError(f"there are {len(self._jobs)} jobs already", hint="unregister some of them")
            return _Job(owner)
        if job.owner != owner:
            raise WalRefusedError(
                f"the job {name} is registered for another table",
                hint="give one of both another name or group; if its table was moved, unregister the job first",
            )
        return job

    def forget(self, name: str) -> None:
        """Unregister a job: what only it still needed may go."""
        with self._lock:
            if self._jobs.pop(name, None) is None:
                raise UnknownTopicError(f"there is no job {name}")
            (self._folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)
            sync_folder(self._folder)

    def forget_topic(self, topic_id: str) -> None:
        """Drop the positions of a topic that is deleted."""
        with self._lock:
            for name, job in self._jobs.items():
                gone = [each for each in job.positions if each[1] == topic_id]
                for each in gone:
                    del job.positions[each]
                if gone:
                    self._write(name, job)

    def committed(self, topic: str, topic_id: str, number: int) -> int | None:
        """What every job that reads the topic has committed of a partition; None if no job does."""
        with self._lock:
            readers = [
                job.positions[topic, topic_id] for job in self._jobs.values() if (topic, topic_id) in job.positions
            ]
            return min((offsets.get(number, 0) for offsets in readers), default=None)

    def _write(self, name: str, job: _Job) -> None:
        topics = [TopicPositions(*topic, offsets) for topic, offsets in job.positions.items()]
        write_whole(self._folder / f"{name}{_SUFFIX}", msgspec.json.encode(JobFile(VERSION, job.owner, topics)))


def _read(path: Path) -> _Job:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=JobFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WalDamagedError("the positions of a job cannot be read", detail=f"{path}: {error}") from None
    if file.version != VERSION:
        raise WalDamagedError(f"{path} is of version {file.version}, this program reads {VERSION}")
    return _Job(file.owner, {(each.topic, each.topic_id): dict(each.offsets) for each in file.topics})
