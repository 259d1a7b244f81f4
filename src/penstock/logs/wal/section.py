"""A WAL in a job file: its keys, its checks and its spec."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from penstock.job.checks.topics import start_offsets
from penstock.job.document import Document
from penstock.job.faults import Finding, KeyPath, shown
from penstock.job.sections.log_section import LogSection, Reader
from penstock.job.sections.models import TopicsSection
from penstock.job.sections.scalars import Text
from penstock.job.sections.section import stated
from penstock.job.spec import Secret, StartAt
from penstock.logs.wal.client import is_address, is_token
from penstock.logs.wal.store import NAME

AT: KeyPath = ("log", "wal")


@dataclass(frozen=True, slots=True)
class WalLogSpec:
    """Which topics of which server, and where one without a position begins.

    Exactly one of `topics` and `topic_pattern` is given.
    """

    url: str
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    start: StartAt | Mapping[str, Mapping[int, int]] = StartAt.EARLIEST
    group: str = ""
    """The name under which the server keeps the job's positions: it trims nothing that they still need."""
    token: str = ""
    owner: str = ""
    """A fingerprint of the job's table: a name of a job belongs to one of them."""

    @property
    def transactional(self) -> bool:
        return False


class WalSection(TopicsSection):
    REQUIRED = ("url",)

    url: Text = None
    token: Text = None


class WalLogSection(LogSection[WalSection]):
    name = "wal"
    phrase = "a durable HTTP log for sources that cannot replay"
    section = WalSection

    def findings(self, section: WalSection, document: Document) -> Iterator[Finding]:
        if section.url is not None and not is_address(section.url):
            yield Finding((*AT, "url"), "expected http://HOST:PORT", "as in http://127.0.0.1:7070")
        if section.token is not None and not is_token(section.token):
            yield Finding((*AT, "token"), "invalid token: it has blanks, or characters beyond ASCII")
        if section.group is not None and not NAME.fullmatch(section.group):
            yield Finding((*AT, "group"), f"invalid job name {shown(section.group)}", "letters, digits, . _ -")

    def build(self, section: WalSection, reader: Reader) -> WalLogSpec:
        owner = hashlib.sha256(reader.table_path.encode()).hexdigest()[:16]
        spec = WalLogSpec(
            section.url or "",
            tuple(section.topics or ()),
            section.topic_pattern,
            group=section.group or reader.job,
            token=Secret(section.token or ""),
            owner=owner,
        )
        return replace(spec, **stated(start=start_offsets(section)))
