"""The files of a keyed table by bucket, and the numbers that commits keep about them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.flow.write.manifest import StagedFile
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.keys import fingerprint
from penstock.lake.delta.table import DeltaLog
from penstock.lake.proposal import RemovedFile
from penstock.tables.keyed.merging.chunks import ChunkStore, file_schema
from penstock.tables.keyed.spec import KeyedSpec

TableFile = ActiveFile | StagedFile | RemovedFile
_FINGERPRINTS = 1 << 63


def commits_key(job: str, bucket: int) -> str:
    """Counts the commits of a job that touched a bucket (RULES K1)."""
    return f"{job}/bucket/{bucket}#commits"


def files_key(job: str) -> str:
    """The sum of the fingerprints of the files that commits of a job have added, less those that they removed."""
    return f"{job}#files"


def files_number(table: DeltaLog, added: Iterable[TableFile], removed: Iterable[TableFile]) -> dict[str, int]:
    """That sum after a commit on the loaded version; it reveals file changes by other writers."""
    key = files_key(table.job)
    total = (table.transaction(key) or 0) + _fingerprints(added) - _fingerprints(removed)
    return {key: total % _FINGERPRINTS}


def touching_numbers(
    table: DeltaLog, buckets: Iterable[int], added: Iterable[TableFile], removed: Iterable[TableFile]
) -> dict[str, int]:
    """The numbers of a commit on the loaded version that changes these buckets."""
    keys = [commits_key(table.job, bucket) for bucket in sorted(buckets)]
    return {key: (table.transaction(key) or 0) + 1 for key in keys} | files_number(table, added, removed)


def has_foreign_changes(table: DeltaLog) -> bool:
    """Whether another writer added or removed files: the loaded version differs from the commits of all jobs."""
    counted = sum(number for key, number in table.transactions().items() if key.endswith(files_key("")))
    return (_fingerprints(table.active_files()) - counted) % _FINGERPRINTS != 0


def chunk_store(spec: KeyedSpec, table: DeltaLog) -> ChunkStore:
    """Reads and writes the files of one table of this job: of its rows, or of its tombstones."""
    options = dict(spec.storage_options)
    return ChunkStore(table.spec.path, options, file_schema(table.schema), spec.layout, spec.chunk_rows)


def files_by_bucket(files: Iterable[ActiveFile]) -> dict[int, tuple[ActiveFile, ...]]:
    buckets: dict[int, list[ActiveFile]] = {}
    for file in files:
        buckets.setdefault(int(file.values[0] or 0), []).append(file)
    return {bucket: tuple(sorted(held, key=lambda file: file.path)) for bucket, held in sorted(buckets.items())}


def commits_by_bucket(table: DeltaLog) -> dict[int, int]:
    """The commits of all jobs that touched a bucket, as of the loaded version."""
    commits: dict[int, int] = {}
    for key, number in table.transactions().items():
        job, mark, name = key.rpartition("/bucket/")
        if mark and job and name.endswith("#commits"):
            bucket = int(name.removesuffix("#commits"))
            commits[bucket] = commits.get(bucket, 0) + number
    return commits


def _fingerprints(files: Iterable[TableFile]) -> int:
    return sum(fingerprint(_identity(file)) for file in files)


def _identity(file: TableFile) -> str:
    vector = file.vector
    return file.path if vector is None else f"{file.path} {vector.path} {vector.offset} {vector.rows}"
