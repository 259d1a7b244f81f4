"""Folders and file names below the root of an export (docs/protocol.md, "Layout")."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from penstock.tables.export.state import Day

SUFFIX = ".parquet"
CLAIMS = "_penstock/_claims"
"""No job can have this name."""

_FINAL = re.compile(r"(?P<space>~?[A-Za-z0-9._-]+\.)(?P<partition>\d+)\.(?P<last>\d+)\.parquet")
_OUTPUT = re.compile(r"(?:compacted|replayed)~(?P<job>[a-z0-9._-]+)\.\d+\.\d+\.parquet")
_DAY_FOLDER = re.compile(r"day=(?P<day>\d{4}-\d{2}-\d{2})")


def name_space(cluster: str, topic: str) -> str:
    """The prefix of file names: `<topic>.`, or `<cluster>.<topic>.` where the job file names the cluster."""
    space = f"{cluster}.{topic}." if cluster else f"{topic}."
    # Readers ignore files whose names begin with these.
    return f"~{space}" if space.startswith(("_", ".")) else space


class FinalName(NamedTuple):
    """The parts of the name of a data file."""

    space: str
    partition: int
    last_offset: int


def claim_of(space: str) -> str:
    """The object by which a job reserves a prefix of file names."""
    return f"{CLAIMS}/names/{space}"


def day_folder(name: str, day: Day) -> str:
    return f"{name}/day={day}"


def final_name(space: str, partition: int, last_offset: int) -> str:
    return f"{space}{partition}.{last_offset}{SUFFIX}"


def output_name(kind: Literal["compacted", "replayed"], job: str, number: int, unique: str) -> str:
    """The name of a file of a compaction or replay, from a unique hex id; `number` is for people."""
    return f"{kind}~{job}.{number}.{int(unique[:12], 16)}{SUFFIX}"


def parse_final_name(path: str) -> FinalName | None:
    """The parts of a file name, in any folder; None if it is not a data file of a slice."""
    match = _FINAL.fullmatch(path.rsplit("/", 1)[-1])
    return None if match is None else FinalName(match["space"], int(match["partition"]), int(match["last"]))


def output_owner(path: str) -> str | None:
    """The job whose compaction or replay wrote a file; None for any other file."""
    match = _OUTPUT.fullmatch(path.rsplit("/", 1)[-1])
    return None if match is None else match["job"]


def type_and_day(path: str) -> tuple[str, Day] | None:
    """The type and the day of a data file by its folders; None for anything else."""
    parts = path.split("/")
    match = _DAY_FOLDER.fullmatch(parts[1]) if len(parts) == 3 else None
    return None if match is None or parts[0].startswith("_") else (parts[0], match["day"])
