"""Where things lie below the root of an export, and the names that readers see (docs/protocol.md, "Layout")."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from penstock.logs.log import Partition

SUFFIX = ".parquet"
CLAIMS = "_penstock/names"
_DIGITS = 20
_FINAL = re.compile(r"(?P<space>~?[A-Za-z0-9._-]+\.)(?P<partition>\d+)(?:~(?P<life>\d+))?\.(?P<last>\d+)\.parquet")
_OUTPUT = re.compile(r"(?:compacted|replayed)~(?P<job>[a-z0-9._-]+)\.(?P<entry>\d+)\.(?P<number>\d+)\.parquet")
_DAY_FOLDER = re.compile(r"day=(?P<day>\d{4}-\d{2}-\d{2})")


class Places:
    """The folders and objects of one job below its root."""

    def __init__(self, job: str) -> None:
        home = f"_penstock/{job}"
        self.staged = f"{home}/staged"
        self.entries = f"{home}/ledger"
        self.snapshots = f"{home}/snapshots"
        self.markers = f"{home}/complete"
        self.last_snapshot = f"{home}/last_snapshot.json"
        self.last_complete = f"{home}/last_complete.json"
        self.proved = f"{home}/proved.json"

    def entry(self, number: int) -> str:
        return f"{self.entries}/{number:0{_DIGITS}}.json"

    def snapshot(self, number: int) -> str:
        return f"{self.snapshots}/{number:0{_DIGITS}}.json"

    def marker(self, name: str, day: str) -> str:
        return f"{self.markers}/{name}/{day}.json"


@dataclass(frozen=True, slots=True)
class NameSpace:
    """How the file names of a job begin: `<topic>.`, or `<cluster>.<topic>.` where the job file names the cluster.

    Always with the topic: a second one may be added to the job at any time.
    """

    cluster: str = ""

    def of(self, topic: str) -> str:
        space = f"{self.cluster}.{topic}." if self.cluster else f"{topic}."
        # Readers pass over files whose names begin with these.
        return f"~{space}" if space.startswith(("_", ".")) else space


@dataclass(frozen=True, slots=True)
class FinalName:
    """What the name of a data file says."""

    space: str
    partition: int
    life: int
    last_offset: int


def claim_of(space: str) -> str:
    """The object by which a job reserves the names that begin so."""
    return f"{CLAIMS}/{space}"


def is_of_topic(space: str, topic: str) -> bool:
    """Whether names that begin so may be of a topic, under whatever name of its cluster."""
    return f".{space.removeprefix('~')}".endswith(f".{topic}.")


def topic_claim(topic_id: str, name: str) -> str:
    """The object by which a job reserves the records of a type in one life of a topic."""
    return f"_penstock/topics/{topic_id}/{name}"


def day_folder(name: str, day: str) -> str:
    return f"{name}/day={day}"


def final_name(space: NameSpace, partition: Partition, life: int, last_offset: int) -> str:
    """The name of a data file; `life` counts the lives of a topic that was recreated, from 1."""
    lived = f"~{life}" if life > 1 else ""
    return f"{space.of(partition.topic)}{partition.number}{lived}.{last_offset}{SUFFIX}"


def output_name(kind: Literal["compacted", "replayed"], job: str, entry: int, number: int) -> str:
    """The name of a file that no slice wrote: the files of slices have names of their own."""
    return f"{kind}~{job}.{entry}.{number}{SUFFIX}"


def parse_final_name(path: str) -> FinalName | None:
    """What the name says, whatever folder it lies in; None if it is no data file of ours."""
    last_part = path.rsplit("/", 1)[-1]
    found = _FINAL.fullmatch(last_part)
    if found is None or _OUTPUT.fullmatch(last_part):
        return None
    return FinalName(found["space"], int(found["partition"]), int(found["life"] or 1), int(found["last"]))


def output_entry(path: str, job: str) -> int | None:
    """The entry that named an output of this job's compaction or replay; None for any other file."""
    found = _OUTPUT.fullmatch(path.rsplit("/", 1)[-1])
    return int(found["entry"]) if found is not None and found["job"] == job else None


def is_own_output(path: str, job: str) -> bool:
    """Whether the file is an output of this job's compaction or of its replay: its name tells the job and the entry."""
    return output_entry(path, job) is not None


def type_and_day(path: str) -> tuple[str, str] | None:
    """The type and the day of a data file by its folders; None for anything else."""
    parts = path.split("/")
    found = _DAY_FOLDER.fullmatch(parts[1]) if len(parts) == 3 else None
    return None if found is None or parts[0].startswith("_") else (parts[0], found["day"])
