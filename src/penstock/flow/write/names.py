"""The names of files that Penstock writes into a table: what vacuum must know is in the name (RULES C1, C7).

A name is a kind letter, fields and a random id with dots between them: topic ids hold `-` and `_`, never a dot, and a
name that began with `_` would be hidden from Hadoop readers. None ends in `.parquet`: a plain glob sees no staged file.

    s.<topic id>.p<partition>.<start>.<end>.<unique>.pq    staged rows of the slice [start, end)
    c.<version max>.<unique>.pq                            compacted rows
    r.<run>.<unique>.pq                                    rows replayed from quarantine
    w.j<tag>.<close>.<unique>.pq                           rows of a close of windows of event time

`.k<rows>-<digest>` may precede the suffix, where a table distinguishes its files by their content.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

NameT = TypeVar("NameT")

SUFFIX = ".pq"

_WORD = r"[A-Za-z0-9_-]+"
_NUMBER = r"0|[1-9][0-9]*"
_UNIQUE = r"[0-9a-f]{32}"
_CONTENT = rf"(?:\.k(?P<rows>{_NUMBER})-(?P<digest>{_UNIQUE}))?"
_STAGED = re.compile(
    rf"s\.(?P<topic_id>{_WORD})\.p(?P<partition>{_NUMBER})\.(?P<start>{_NUMBER})\.(?P<end>{_NUMBER})"
    rf"\.(?P<unique>{_UNIQUE}){_CONTENT}\.pq"
)
_COMPACTED = re.compile(rf"c\.(?P<version_max>{_NUMBER})\.(?P<unique>{_UNIQUE}){_CONTENT}\.pq")
_REPLAYED = re.compile(rf"r\.(?P<run>{_WORD})\.(?P<unique>{_UNIQUE}){_CONTENT}\.pq")
_CLOSED = re.compile(rf"w\.j(?P<owner>[0-9a-f]{{16}})\.(?P<close>{_NUMBER})\.(?P<unique>{_UNIQUE})\.pq")


@dataclass(frozen=True, slots=True)
class StagedName:
    """A staged file of the slice `[start, end)`."""

    topic_id: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CompactedName:
    """A compaction's output; its commit can land as table version `version_max` at the latest."""

    version_max: int


@dataclass(frozen=True, slots=True)
class ReplayedName:
    """An output of one replay run of the quarantine."""

    run: str


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file as its name states it: the number of rows, and a digest of them, 128 bits as hex."""

    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class ClosedName:
    """An output of one close of a job; none is committed after the close is complete."""

    owner: str
    """The tag of the job."""
    close: int


def owner_tag(job: str) -> str:
    """A job's name as file names can hold it."""
    return hashlib.sha256(job.encode()).hexdigest()[:16]


def staged_name(topic_id: str, partition: int, start: int, end: int, unique: str) -> str:
    """The name of a staged file; `unique` is the hex of a fresh uuid4, another one for every file of every attempt."""
    return _checked(_STAGED, f"s.{topic_id}.p{partition}.{start}.{end}.{unique}{SUFFIX}")


def compacted_name(version_max: int, unique: str) -> str:
    return _checked(_COMPACTED, f"c.{version_max}.{unique}{SUFFIX}")


def replayed_name(run: str, unique: str) -> str:
    return _checked(_REPLAYED, f"r.{run}.{unique}{SUFFIX}")


def with_content(name: str, content: Content) -> str:
    """The same name, with the content of its file in it."""
    full_name = f"{name.removesuffix(SUFFIX)}.k{content.rows}-{content.digest}{SUFFIX}"
    if content_of(full_name) != content:
        raise ValueError(f"not a Penstock file name: {full_name}")
    return full_name


def content_of(path: str) -> Content | None:
    """The content by the name; `None` if it is not in it."""
    name = _last_part(path)
    result = next((match for shape in (_STAGED, _COMPACTED, _REPLAYED) if (match := shape.fullmatch(name))), None)
    return None if result is None or result["digest"] is None else Content(int(result["rows"]), result["digest"])


def closed_name(owner: str, close: int, unique: str) -> str:
    return _checked(_CLOSED, f"w.j{owner}.{close}.{unique}{SUFFIX}")


def _parser(shape: re.Pattern[str], kind: type[NameT]) -> Callable[[str], NameT | None]:
    """A parser of names of the kind, in any folder; it gives `None` for other names. Groups become fields."""

    def parse(path: str) -> NameT | None:
        match = shape.fullmatch(_last_part(path))
        return None if match is None else msgspec.convert(match.groupdict(), kind, strict=False)

    return parse


parse_staged_name = _parser(_STAGED, StagedName)
parse_compacted_name = _parser(_COMPACTED, CompactedName)
parse_replayed_name = _parser(_REPLAYED, ReplayedName)
parse_closed_name = _parser(_CLOSED, ClosedName)


def _last_part(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _checked(shape: re.Pattern[str], name: str) -> str:
    if shape.fullmatch(name) is None:
        raise ValueError(f"not a Penstock file name: {name}")
    return name
