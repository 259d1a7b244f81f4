"""A WAL in a job file: its keys, its checks and its spec."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from penstock.job.checks.topics import start_offsets
from penstock.job.document import Document
from penstock.job.faults import Finding, KeyPath, shown
from penstock.job.sections.log_section import LogSection, Reader
from penstock.job.sections.models import TopicsSection
from penstock.job.sections.scalars import Text
from penstock.job.sections.section import stated
from penstock.job.spec import Secret
from penstock.logs.wal.spec import WalLogSpec, is_token
from penstock.logs.wal.store.store import NAME

AT: KeyPath = ("log", "wal")


class WalSection(TopicsSection):
    REQUIRED = ("url",)

    url: Text = None
    token: Text = None


class WalLogSection(LogSection[WalSection]):
    name = "wal"
    phrase = "a log of Penstock's own, for sources that cannot send again"
    section = WalSection

    def findings(self, section: WalSection, document: Document) -> Iterator[Finding]:
        if section.url is not None and not _is_address(section.url):
            yield Finding((*AT, "url"), "expected http://HOST:PORT", "as in http://127.0.0.1:7070")
        if section.token is not None and not is_token(section.token):
            yield Finding((*AT, "token"), "is no token: it has blanks, or characters beyond ASCII")
        if section.group is not None and not NAME.fullmatch(section.group):
            yield Finding((*AT, "group"), f"{shown(section.group)} is no name of a job", "letters, digits, . _ -")

    def build(self, section: WalSection, reader: Reader) -> WalLogSpec:
        owner = hashlib.sha256(reader.table_path.encode()).hexdigest()[:16]
        topics = tuple(section.topics or ())
        spec = WalLogSpec(
            section.url or "",
            topics,
            section.topic_pattern,
            group=section.group or reader.job,
            token=Secret(section.token or ""),
            owner=owner,
        )
        return replace(spec, **stated(start=start_offsets(section)))


def _is_address(url: str) -> bool:
    try:
        split = urlsplit(url)
        known_port = split.port is None or split.port >= 1
    except ValueError:
        return False
    rest = split.path.strip("/") or split.query or split.fragment or split.username
    return split.scheme == "http" and bool(split.hostname) and known_port and not rest
