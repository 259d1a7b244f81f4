"""The model of `log.wal` in a job file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from penstock.job.faults import RefusedError
from penstock.job.spec import Group, Secret, StartAt, StartOffsets
from penstock.job.values import Parsed, Pattern, Texts, text


def is_token(text: str) -> bool:
    """Whether a header can carry it."""
    return text.isascii() and text.isprintable() and bool(text) and " " not in text


def _url(value: object) -> str:
    if not _is_address(text(value)):
        raise RefusedError("expected http://HOST:PORT", "as in http://127.0.0.1:7070")
    return text(value)


def _is_address(url: str) -> bool:
    try:
        split = urlsplit(url)
        has_port = split.port is None or split.port >= 1
    except ValueError:
        return False
    rest = split.path.strip("/") or split.query or split.fragment or split.username
    return split.scheme == "http" and bool(split.hostname) and has_port and not rest


def _token(value: object) -> Secret:
    if not is_token(text(value)):
        raise RefusedError("is no token: it has blanks, or characters beyond ASCII")
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
