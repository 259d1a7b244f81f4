"""What the pages show: the jobs with their newest status, the history, and who may do what."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from penstock.console.access import Access
from penstock.console.children import Children
from penstock.console.history import History, Point
from penstock.console.live import Live
from penstock.errors import UserError
from penstock.events import BatchCommitted, Event, Mirrored
from penstock.job.spec import JobSpec
from penstock.reporting.model import JobStatus
from penstock.reporting.verdicts import Judgement, Verdict

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
    own_steps: dict[str, float] = field(default_factory=dict)
    """Seconds of the steps of the last batch, if the job runs in this process: commits do not record all of them."""

    owners: Mapping[str, str] = field(default_factory=dict)
    """The process that holds a partition, of jobs with claims."""
    owners_read_at: float = 0.0

    @property
    def judgement(self) -> Judgement | None:
        """None until the job is read for the first time."""
        if self.error:
            return Judgement(Verdict.ERR, self.error.partition("\n")[0])
        return self.status.judgement if self.status is not None else None

    @property
    def severity(self) -> int:
        """How much it needs attention: by its verdict, then by alerts."""
        judgement = self.judgement
        alerts = bool(self.status is not None and self.status.alerts)
        return 2 * judgement.verdict.severity + alerts if judgement is not None else 0

    @property
    def lag(self) -> int | None:
        return self.recent[-1].lag if self.recent else None

    @property
    def spark(self) -> list[tuple[float, float | None]]:
        """The lag of the last hour."""
        return [(point.at, point.lag) for point in self.recent]

    @property
    def age(self) -> int | None:
        """Of the oldest unread record, in seconds."""
        return self.recent[-1].age if self.recent else None

    @property
    def topics(self) -> str:
        if self.spec is None:
            return ""
        return ", ".join(self.spec.log.topics) or f"/{self.spec.log.topic_pattern}/"


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
    """The name of the job, as far as an address can carry it; None if the file is not a job file."""
    try:
        values = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    is_job = isinstance(values, dict) and {"job", "log", "table"} <= values.keys()
    return re.sub(r"[^\w.-]", "_", str(values["job"])) if is_job else None


class RunListener:
    """Keeps how long the steps took of a job that runs in this process."""

    def __init__(self, job: WatchedJob) -> None:
        self._job = job

    def event(self, event: Event) -> None:
        if isinstance(event, BatchCommitted):
            self._job.own_steps = {**self._job.own_steps, **event.steps}
        elif isinstance(event, Mirrored):
            self._job.own_steps = {**self._job.own_steps, "mirror": event.seconds}
