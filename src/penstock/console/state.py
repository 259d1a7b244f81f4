"""What the pages show: the jobs with their newest status, the history, and who may do what."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from penstock.console.access import Access
from penstock.console.children import Children
from penstock.console.history import History, Point
from penstock.console.live import Live
from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.reporting.model import JobStatus

FILES_MAX = 500
"""Of a folder that is searched for job files."""
LOGGER = logging.getLogger("penstock.console")


@dataclass(slots=True)
class WatchedJob:
    """A job with its newest status, or the reason why that could not be read. Written by the poller alone."""

    name: str
    path: Path | None
    spec: JobSpec | None = None
    """None until its file is read."""
    status: JobStatus | None = None
    error: str = ""
    """Why the newest attempt to read the file or the status failed; `status` then is an earlier one."""
    read_at: float | None = None
    """When `status` was read."""
    recent: Sequence[Point] = ()
    """The last hour, for sparklines."""
    rate: float | None = None
    """Records per second, over the last minute."""
    text: str = ""
    """The job file with its secrets hidden."""
    changed_at: int = 0
    """Of the file, when it was read."""


@dataclass(slots=True)
class ConsoleState:
    jobs: dict[str, WatchedJob]
    history: History
    access: Access
    live: Live = field(default_factory=Live)
    children: Children = field(default_factory=Children)
    read_soon: Callable[[str], None] = lambda job: None
    """Reads the status of a job at once, after an action; set by the poller."""

    def record_action(self, who: str, what: str, job: str, detail: str = "") -> None:
        """Keep who did what; it is also logged."""
        self.history.note("action", job, what, who, detail)
        LOGGER.warning("%s", {"event": "action", "who": who, "what": what, "job": job, "detail": detail})


def watched_files(paths: Iterable[Path]) -> dict[str, WatchedJob]:
    """The jobs of these files by their names; faults of a file are shown on its page."""
    jobs: dict[str, WatchedJob] = {}
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} is not a file", hint="name job files, or none for those of this folder")
        name = _name_of(path) or path.stem
        if name in jobs:
            raise UserError(f"{path} and {jobs[name].path} have the same job name {name}", hint="show one of them")
        jobs[name] = WatchedJob(name, path)
    return jobs


def watched_jobs(specs: Iterable[JobSpec]) -> dict[str, WatchedJob]:
    return {spec.name: WatchedJob(spec.name, spec.path, spec) for spec in specs}


def job_files(folder: Path) -> list[Path]:
    """The files of a folder that are job files."""
    files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])[:FILES_MAX]
    return [path for path in files if _name_of(path) is not None]


def _name_of(path: Path) -> str | None:
    """The name of the job; None if the file is not a job file."""
    try:
        values = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    is_job = isinstance(values, dict) and {"job", "log", "table"} <= values.keys()
    return str(values["job"]) if is_job else None
