"""The seam between the frame of a job file and a kind of table, which brings its own sections, checks and spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
from pydantic import create_model

from penstock.job.document import Document
from penstock.job.expressions import Expression
from penstock.job.faults import Finding
from penstock.job.sections.log_section import Logs
from penstock.job.sections.models import JobFile, LogChoice, TableChoice, TableSection, TopicsSection
from penstock.job.spec import DecodeSpec, JobSpec, TableSpec

FileT = TypeVar("FileT", bound=JobFile)
SectionT = TypeVar("SectionT", bound=TableSection)


@dataclass(frozen=True, slots=True)
class Reading(Generic[FileT, SectionT]):
    """A job file as far as it could be read: what is wrong was cut out and has a finding already."""

    file: FileT
    section: SectionT | None
    """What stands under `table`."""
    document: Document
    folder: Path
    """Of the job file: relative paths begin there."""
    decode: DecodeSpec | None


@dataclass(frozen=True, slots=True)
class Parts:
    """What was read from the texts inside the file."""

    schema: pa.Schema | None
    """The decoded fields; None where they could not be told, which is a finding."""
    columns: dict[str, Expression]


PartsT = TypeVar("PartsT", bound=Parts)


class KindSection(Protocol[FileT, SectionT, PartsT]):
    """What a job file may state about a table of one kind."""

    name: str
    """The key under `table`."""
    phrase: str
    """What it is, for a file that names no kind: `one table`."""
    table: type[SectionT]
    """The section under `table`."""
    file: type[FileT]
    """The whole file, with the top-level sections that only this kind has."""
    signs: tuple[str, ...] = ()
    """Top-level keys by which a file means this kind, if it forgot to name one."""
    many_types: str = ""
    """How records of many types are written with it, as a hint; empty: all its records are of one type."""

    takes_points: bool = False
    """Whether it takes points of series; else rows."""
    has_place: bool = False
    """Whether each of its rows is one record, and carries topic, partition and offset of it (`place`)."""

    def read(self, reading: Reading[FileT, SectionT]) -> tuple[PartsT, list[Finding]]:
        """Read and check what depends on the kind: its own sections, and the fields and columns of its rows."""

    def build(self, reading: Reading[FileT, SectionT], parts: PartsT, place: TableSpec) -> TableSpec:
        """The spec of a file without a fault."""

    def clash(self, job: JobSpec, other: JobSpec, other_path: Path) -> Finding | None:
        """Why a job of this kind cannot run beside the other; paths of tables are not named, they may be secrets."""
        return None


AnyKindSection = KindSection[Any, Any, Any]
Kinds = Sequence[AnyKindSection]


def own_keys(kind: AnyKindSection) -> list[str]:
    """The top-level keys that a file has only with this kind."""
    return [name for name in kind.file.model_fields if name not in JobFile.model_fields]


def file_model(kinds: Kinds, logs: Logs) -> type[JobFile]:
    """The job file with the sections of all these kinds and logs."""
    return _file_model(
        tuple((kind.name, kind.table, kind.file) for kind in kinds), tuple((log.name, log.section) for log in logs)
    )


@lru_cache(maxsize=8)
def _file_model(
    kinds: tuple[tuple[str, type[TableSection], type[JobFile]], ...], logs: tuple[tuple[str, type[TopicsSection]], ...]
) -> type[JobFile]:
    tables: Any = {name: (table | None, None) for name, table, _ in kinds}
    sections: Any = {name: (section | None, None) for name, section in logs}
    table: Any = create_model("TableChoice", __base__=TableChoice, **tables)
    log: Any = create_model("LogChoice", __base__=LogChoice, **sections)
    files = tuple(dict.fromkeys(file for *_, file in kinds if file is not JobFile))
    return create_model("JobFile", __base__=files or JobFile, table=(table | None, None), log=(log | None, None))
