"""One process at a time, by a lock that the operating system lets go of when its holder dies."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import TransientError

_POLL_SECONDS = 0.2


@contextmanager
def exclusive(path: Path, *, wait_seconds_max: float) -> Iterator[None]:
    """Holds the lock file while the block runs; TransientError if another process keeps it for too long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_seconds_max
    with path.open("w") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    waited = f"waited {wait_seconds_max:g} s"
                    raise TransientError(f"{path} is locked by another process", detail=waited) from None
            time.sleep(_POLL_SECONDS)
        yield
