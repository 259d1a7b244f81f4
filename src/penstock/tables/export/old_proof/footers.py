"""Looks at every file that a table or its quarantine names: it is there, of the size and rows that its commit says."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.job.spec import JobSpec
from penstock.lake.delta.active_files import active_paths
from penstock.lake.delta.table import Table, open_table
from penstock.lake.storage import NotFoundError, Storage, open_storage
from penstock.proof.files import GoneError
from penstock.tables.export.old_proof.offsets.owners import QUARANTINE_COLUMNS, OriginColumns
from penstock.tables.export.old_proof.offsets.table import DataFile, column_statistics, data_files
from penstock.tables.quarantine.life import belongs_to
from penstock.tables.quarantine.rows import count_rows, own_files

FOOTERS_AT_ONCE = 16
NAMES_SHOWN_MAX = 5


class FileFault(StrEnum):
    """What is wrong with a file; the value is the text that a person reads."""

    GONE = "files that the table names are gone"
    UNREADABLE = "files cannot be read"
    SIZE = "files have another size than was committed"
    ROWS = "files have another number of rows than was committed"


@dataclass(frozen=True, slots=True)
class Examined:
    """The files that can be read, with the rows of their footers, and what is wrong with the others."""

    files: tuple[DataFile, ...]
    faults: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(each.rows or 0 for each in self.files)


def examine(
    storage: Storage,
    files: Sequence[DataFile],
    columns: OriginColumns | None,
    still_named: Callable[[], Collection[str]] | None = None,
) -> Examined:
    """Read the footer of every file.

    `still_named` tells the paths that the newest version of the table names: a file that is gone and no longer named
    was compacted and vacuumed meanwhile, and the verification begins anew (`GoneError`).
    """
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        found = list(pool.map(lambda each: _look(storage, each, columns), files))
    faulty: dict[FileFault, list[str]] = {}
    for file, (_, fault) in zip(files, found, strict=True):
        if fault is not None:
            faulty.setdefault(fault, []).append(file.moves_to or file.path)
    gone = faulty.get(FileFault.GONE, [])
    if gone and still_named is not None and not set(gone) <= set(still_named()):
        raise GoneError(f"files of {storage.url} were vacuumed while they were verified")
    faults = [told(str(kind), faulty[kind]) for kind in FileFault if kind in faulty]
    return Examined(tuple(each for each, _ in found if each is not None), tuple(faults))


def _look(storage: Storage, file: DataFile, columns: OriginColumns | None) -> tuple[DataFile | None, FileFault | None]:
    """A file where it is, or where it was moved meanwhile."""
    for path in (file.path, file.moves_to):
        try:
            if path is not None:
                with storage.open_reader(path) as source:
                    size_bytes = source.seek(0, os.SEEK_END)
                    source.seek(0)
                    footer = pq.read_metadata(source)
                    break
        except NotFoundError:
            pass
        except (pa.ArrowException, OSError):
            return None, FileFault.UNREADABLE
    else:
        return None, FileFault.GONE
    rows = footer.num_rows
    seen = replace(
        file,
        path=path,
        moves_to=None if path == file.moves_to else file.moves_to,
        rows=rows,
        offsets=_extent(footer, columns.offset) if columns else None,
        numbers=_extent(footer, columns.partition) if columns else None,
    )
    if file.rows is not None and rows != file.rows:
        return seen, FileFault.ROWS
    if file.size_bytes is not None and size_bytes != file.size_bytes:
        return seen, FileFault.SIZE
    return seen, None


def _extent(footer: pq.FileMetaData, column: str) -> tuple[int, int] | None:
    """The least and the greatest value of a column; None where the footer does not tell, or there are nulls."""
    lows, highs = [], []
    for number in range(footer.num_row_groups):
        statistics = column_statistics(footer.row_group(number), column)
        if statistics is None or statistics.null_count != 0:
            return None
        lows.append(int(statistics.min))
        highs.append(int(statistics.max))
    return (min(lows), max(highs)) if lows else None


def told(what: str, paths: Iterable[str]) -> str:
    """A fault of files with some of their names; empty if there are none."""
    found = sorted(paths)
    shown = ", ".join(found[:NAMES_SHOWN_MAX])
    more = f" and {len(found) - NAMES_SHOWN_MAX} more" if len(found) > NAMES_SHOWN_MAX else ""
    return f"{len(found)} {what}: {shown}{more}" if found else ""


@dataclass(frozen=True, slots=True)
class QuarantineFiles:
    """The files of the quarantine table with rows of the job, and those that it has yet to take (RULES Q1)."""

    storage: Storage
    taken: Examined
    pending: Examined
    faults: tuple[str, ...]

    @staticmethod
    def of(job: JobSpec, quarantine: Table | None, pending: Sequence[DataFile], life: int | None) -> QuarantineFiles:
        """Look at every file; `life` is that of the job's table."""
        storage = open_storage(job.table.quarantine_path, job.table.storage_options)
        taken, waiting = Examined(()), examine(storage, pending, QUARANTINE_COLUMNS)
        faults: list[str] = []
        if quarantine is not None:
            # Other jobs may share it.
            own = {file.path for file in own_files(quarantine)}
            files = [file for file in data_files(quarantine) if file.path in own]
            taken = examine(storage, files, QUARANTINE_COLUMNS, named_now(quarantine))
            if not belongs_to(quarantine, job.name, life) and count_rows(quarantine):
                faults.append(f"the quarantine at {quarantine.spec.path} belongs to an earlier table of the job")
        faults += [f"quarantine: {each}" for each in (*taken.faults, *waiting.faults)]
        return QuarantineFiles(storage, taken, waiting, tuple(faults))

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.taken.files + self.pending.files


def named_now(table: Table) -> Callable[[], Collection[str]]:
    """Asks which files the newest version of a table names."""
    return lambda: active_paths(open_table(table.spec, table.job).handle)
