"""The files of a keyed table as one version has them, and what its commits count by bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.write.names import content_of
from penstock.lake.delta.active_files import raw_paths
from penstock.lake.delta.keys import fingerprint
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.table import Table
from penstock.lake.proposal import RemovedFile
from penstock.tables.keyed.layout import BUCKET, Layout
from penstock.tables.keyed.merging.plan import OldFile

JOIN_FILES_MIN = 8
"""So many small files of a like size become one, so that a row is written again only as often as files grow in size. A
file is small if as many like it make one chunk at most, and no more bytes than are put together at once."""
JOIN_BYTES_MAX = 128 * 1024 * 1024
"""Of the files that a task puts together, which holds all of their rows in memory (I6)."""
_FINGERPRINTS = 1 << 63


class _Named(Protocol):
    @property
    def path(self) -> str: ...


def commits_key(job: str, bucket: int) -> str:
    """Counts the commits of a job that touched a bucket (RULES K1)."""
    return f"{job}/bucket/{bucket}#commits"


def files_key(job: str) -> str:
    """The sum of the fingerprints of the files that commits of a job have added, less those that they removed."""
    return f"{job}#files"


def files_number(table: Table, added: Iterable[_Named], removed: Iterable[_Named]) -> dict[str, int]:
    """What a commit on the loaded version makes of that sum: with it, no other writer changes files unnoticed."""
    key = files_key(table.job)
    total = (table.transaction(key) or 0) + _fingerprints(added) - _fingerprints(removed)
    return {key: total % _FINGERPRINTS}


def has_foreign_changes(table: Table) -> bool:
    """Whether the files of the loaded version are others than those that the commits of all jobs left there."""
    counted = sum(number for key, number in table.transactions().items() if key.endswith(files_key("")))
    return (_fingerprints(table.active_files()) - counted) % _FINGERPRINTS != 0


@dataclass(frozen=True, slots=True)
class Base:
    """What a bucket was when a batch was merged into it: two that are equal hold the same rows and tombstones."""

    files: frozenset[str] = frozenset()
    commits: int = 0
    """Of all jobs: a commit that only deletes what is not there changes no file."""


@dataclass(frozen=True, slots=True)
class ActiveFiles:
    """Every file of one version, by bucket."""

    by_bucket: Mapping[int, tuple[OldFile, ...]]
    commits: Mapping[int, int] = field(default_factory=dict)

    def of(self, bucket: int) -> tuple[OldFile, ...]:
        return self.by_bucket.get(bucket, ())

    def base(self, bucket: int) -> Base:
        return Base(frozenset(each.path for each in self.of(bucket)), self.commits.get(bucket, 0))

    def removed(self, bucket: int, paths: Iterable[str]) -> list[RemovedFile]:
        """What a commit says of files that it takes out: they must be there (RULES K3)."""
        known = {each.path: each for each in self.of(bucket)}
        lost = [path for path in paths if path not in known]
        if lost:
            raise InvariantError(f"a merge of bucket {bucket} replaces {lost[0]}, which is not in the table any more")
        return [RemovedFile(path, known[path].size_bytes, {BUCKET: str(bucket)}) for path in paths]

    @property
    def rows(self) -> int:
        return sum(each.rows for files in self.by_bucket.values() for each in files)


def read_active(table: Table, layout: Layout) -> ActiveFiles:
    """The files of the loaded version, with the bounds of their keys."""
    with library_errors(table.spec.path):
        actions = pa.table(table.handle.get_add_actions(flatten=True))
    names = [f"{what}.{name}" for name in layout.bounded for what in ("min", "max")]
    there = [
        name for name in ("num_records", "size_bytes", f"partition.{BUCKET}", *names) if name in actions.column_names
    ]
    frame = pl.DataFrame(pl.from_arrow(actions.select(there))).with_columns(pl.Series("path", raw_paths(actions)))
    found: dict[int, list[OldFile]] = {}
    for entry in frame.iter_rows(named=True):
        found.setdefault(entry[f"partition.{BUCKET}"], []).append(_old_file(entry, layout.bounded))
    files = {bucket: tuple(sorted(each, key=lambda file: file.path)) for bucket, each in found.items()}
    return ActiveFiles(files, _commits(table))


def meeting(files: Sequence[OldFile], runs: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> tuple[OldFile, ...]:
    """The files that may hold a key of the runs, by the bounds of both."""
    held = list(runs)
    return tuple(each for each in files if any(_meets(each, run, columns) for run in held))


def by_key(files: Iterable[OldFile], column: str) -> list[OldFile]:
    """In the order of the least value of a column; those of which nobody knows it come last."""
    told = [(bounds[0], each.path, each) for each in files if (bounds := each.bounds.get(column)) is not None]
    return [*(each for *_, each in sorted(told)), *(each for each in files if each.bounds.get(column) is None)]


def small_alike(files: Sequence[OldFile], chunk_rows: int, column: str) -> frozenset[str]:
    """Small files worth putting together: of a like size, enough of them, neighbours in the values of a column."""
    tiers: dict[int, list[OldFile]] = {}
    for each in by_key(files, column):
        if each.rows * JOIN_FILES_MIN <= chunk_rows and each.size_bytes * JOIN_FILES_MIN <= JOIN_BYTES_MAX:
            tiers.setdefault(each.rows.bit_length() // 3, []).append(each)
    for _, alike in sorted(tiers.items()):
        if len(alike) >= JOIN_FILES_MIN:
            chosen: list[OldFile] = []
            rows = size_bytes = 0
            for each in alike:
                if rows + each.rows <= chunk_rows and size_bytes + each.size_bytes <= JOIN_BYTES_MAX:
                    chosen.append(each)
                    rows, size_bytes = rows + each.rows, size_bytes + each.size_bytes
            return frozenset(each.path for each in chosen) if len(chosen) > 1 else frozenset()
    return frozenset()


def _meets(file: OldFile, run: Mapping[str, Any], columns: Sequence[str]) -> bool:
    for name in columns:
        bounds = file.bounds.get(name)
        if bounds is not None and (run[f"high.{name}"] < bounds[0] or run[f"low.{name}"] > bounds[1]):
            return False
    return True


def _old_file(entry: Mapping[str, Any], columns: Sequence[str]) -> OldFile:
    content = content_of(entry["path"])
    bounds = {}
    for name in columns:
        least, most = entry.get(f"min.{name}"), entry.get(f"max.{name}")
        bounds[name] = None if least is None or most is None else (least, most)
    digest = "" if content is None else content.digest
    return OldFile(entry["path"], entry.get("num_records") or 0, entry["size_bytes"], bounds, digest)


def _fingerprints(files: Iterable[_Named]) -> int:
    return sum(fingerprint(file.path) for file in files)


def _commits(table: Table) -> dict[int, int]:
    """By bucket, the commits of all jobs that touched it."""
    found: dict[int, int] = {}
    for key, number in table.transactions().items():
        head, mark, rest = key.rpartition("/bucket/")
        if mark and head and rest.endswith("#commits"):
            bucket = int(rest.removesuffix("#commits"))
            found[bucket] = found.get(bucket, 0) + number
    return found
