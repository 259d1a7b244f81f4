"""What a job says of a WAL that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.job.spec import StartAt


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
    """What the server knows the job by, if it wants a token."""
    owner: str = ""
    """A fingerprint of the job's table: a name of a job belongs to one of them."""

    @property
    def transactional(self) -> bool:
        return False


def is_token(text: str) -> bool:
    """Whether a header can carry it."""
    return text.isascii() and text.isprintable() and bool(text) and " " not in text
