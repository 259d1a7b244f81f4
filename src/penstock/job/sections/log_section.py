"""The seam between the frame of a job file and a log, which brings its own section, checks and spec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from penstock.job.document import Document
from penstock.job.faults import Finding
from penstock.job.sections.models import TopicsSection
from penstock.job.spec import LogSpec

SectionT = TypeVar("SectionT", bound=TopicsSection)


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads the log: what a log may want to know of the rest of the file."""

    job: str
    folder: Path
    """Of the job file: relative paths begin there."""
    table_path: str


class LogSection(Protocol[SectionT]):
    """What a job file may state about one log."""

    name: str
    """The key under `log`."""
    phrase: str
    """What it is, for a file that names no log: `a Kafka cluster`."""
    section: type[SectionT]
    """The section under `log`."""

    def findings(self, section: SectionT, document: Document) -> Iterator[Finding]:
        """What cannot be right in the section; topics and start are checked by the frame."""

    def build(self, section: SectionT, reader: Reader) -> LogSpec:
        """The spec of a section without a fault."""


AnyLogSection = LogSection[Any]
Logs = Sequence[AnyLogSection]
