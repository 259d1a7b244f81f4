"""How Penstock calls the Delta library: errors become those of Penstock, and nothing is retried behind its back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from penstock.errors import PenstockError, TransientError, UnreachableError, UserError
from penstock.storage.failures import missing_credentials, missing_right


class MissingTableError(TransientError):
    """There is no Delta table at the path."""


class ConflictError(TransientError):
    """Another commit took the version that this one was to get."""


_NOISE = re.compile(r"\x1b\[[0-9;]*m|\s*↳\s*")
_REFUSED = ("Permission denied", "PermissionDenied", "AccessDenied", "Forbidden", "Read-only")
_NO_PLACE = (
    "Invalid table location",
    "NotADirectory",
    "Not a directory",
    "File name too long",
    "NoSuchBucket",
    "bucket does not exist",
    "ContainerNotFound",
)
_NO_CONNECTION = "tcp connect error"
_FULL = ("No space left", "StorageFull", "QuotaExceeded", "Disk quota", "File too large")


@contextmanager
def library_errors(path: str) -> Iterator[None]:
    """Translate whatever the Delta library raises about the table at `path`."""
    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        raise translated(error, path) from error


def translated(error: Exception, path: str) -> PenstockError:
    text = " ".join(_NOISE.sub(" ", str(error)).split())
    if (missing := missing_credentials(text, path)) is not None:
        return missing
    if any(mark in text for mark in _REFUSED):
        return UserError(
            f"no permission on the table at {path}",
            detail=text,
            hint=missing_right(text),
        )
    if any(mark in text for mark in _NO_PLACE):
        return UserError(
            f"no table can be at {path}",
            detail=text,
            hint="check the path in the job file: its bucket must exist, and no part of it may be a file",
        )
    if any(mark in text for mark in _FULL):
        return TransientError(f"no space left for the table at {path}", detail=text, hint="free space; the job goes on")
    if isinstance(error, CommitFailedError):
        return ConflictError(f"another commit came first at {path}", detail=text)
    if isinstance(error, TableNotFoundError):
        return MissingTableError(f"no Delta table at {path}", detail=text)
    branch = UnreachableError if _NO_CONNECTION in text else TransientError
    return branch(f"the table at {path} does not answer", detail=text)


def tried_once(metadata: Mapping[str, Any], numbers: list[Transaction] | None = None) -> CommitProperties:
    """Properties of a commit that the library must not retry, because Penstock checks for conflicts itself."""
    return CommitProperties(custom_metadata=dict(metadata), max_commit_retries=0, app_transactions=numbers)
