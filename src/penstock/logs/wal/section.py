"""The model of `log.wal` in a job file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Annotated

from penstock.job.faults import KeyPath, RefusedError, shown
from penstock.job.reader import Reader
from penstock.job.sections import LogSection, complete_topics
from penstock.job.spec import Group, JobSpec, Secret, StartAt, StartOffsets
from penstock.job.values import Parsed, Pattern, Texts, text
from penstock.logs.wal.client import is_address, is_token
from penstock.logs.wal.store import NAME


def _url(value: object) -> str:
    if not is_address(text(value)):
        raise RefusedError("expected http://HOST:PORT", "as in http://127.0.0.1:7070")
    return text(value)


def _token(value: object) -> Secret:
    if not is_token(text(value)):
        raise RefusedError("invalid token: it has blanks, or characters beyond ASCII")
    return Secret(text(value))


@dataclass(frozen=True, slots=True)
class WalLogSpec:
    """Which topics of which server, and where one without a position begins.

    Exactly one of `topics` and `topic_pattern` is given.
    """

    url: Annotated[str, Parsed(_url)]
    topics: Texts = ()
    topic_pattern: Pattern | None = None
    start: StartOffsets = StartAt.EARLIEST
    group: Group = ""
    """The name under which the server keeps the job's positions: it trims nothing that they still need."""
    token: Annotated[str, Parsed(_token)] = ""
    """What the server knows the job by, if it wants a token."""
    owner: str = ""
    """A fingerprint of the job's table: a name of a job belongs to one of them."""

    @property
    def transactional(self) -> bool:
        return False


class WalLogSection(LogSection[WalLogSpec]):
    name = "wal"
    spec = WalLogSpec

    def complete(self, log: WalLogSpec, job: JobSpec, reader: Reader) -> WalLogSpec:
        at: KeyPath = ("log", self.name)
        if log.group and not NAME.fullmatch(log.group):
            reader.note((*at, "group"), f"invalid job name {shown(log.group)}", "letters, digits, . _ -")
        owner = hashlib.sha256((job.table.path or "").encode()).hexdigest()[:16]
        completed: WalLogSpec = complete_topics(log, at, reader)
        return replace(completed, group=log.group or job.name, owner=owner)
