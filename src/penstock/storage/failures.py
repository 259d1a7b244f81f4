"""Errors of stores as Penstock errors with a hint what to do next."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import obstore.exceptions as store_errors

from penstock.errors import PenstockError, TransientError, UnreachableError, UserError

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_HTTP_STATUS = re.compile(r"status code: (\d{3})")
_DETAIL_CHARS_MAX = 500

_DENIED = (PermissionError, store_errors.PermissionDeniedError, store_errors.UnauthenticatedError)
_PERMISSION = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_BAD_PATH = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL})
_STATUS_WORTH_A_RETRY = frozenset({408, 409, 425, 429})


_NO_CREDENTIALS = re.compile(
    r"loading credentials|169\.254\.169\.254|token request|NoCredentials|Account must be specified", re.IGNORECASE
)
"""Libraries without stated credentials ask the metadata service of a cloud machine, which may not be there."""
_CREDENTIALS = {
    "s3": ("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", "aws_access_key_id and aws_secret_access_key"),
    "gs": ("GOOGLE_SERVICE_ACCOUNT", "google_service_account"),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY", "azure_storage_account_name and ..._key"),
}


class NotFoundError(UserError):
    """There is no object of that name."""


def missing_credentials(text: str, url: str) -> UnreachableError | None:
    """The error to raise if the text of a store's error says that it has no credentials."""
    if not _NO_CREDENTIALS.search(text):
        return None
    scheme = "az" if url.startswith(("ab", "ad")) else url[:2]
    variables, keys = _CREDENTIALS.get(scheme, _CREDENTIALS["s3"])
    hint = f"set {variables} in the environment, or {keys} in the table's storage section"
    task = in_task()
    return UnreachableError(
        f"no credentials for {url}{' on an executor' if task else ''}",
        detail=text.split("\n\nDebug source", maxsplit=1)[0][:_DETAIL_CHARS_MAX],
        hint=f"{hint}, which tasks get; their environment is spark.executorEnv.NAME in spark.conf" if task else hint,
    )


def in_task() -> bool:
    """Whether this process runs a Spark task."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.TaskContext.get() is not None


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Turn errors of a store inside the block into Penstock errors."""
    try:
        yield
    except (store_errors.BaseError, OSError, ValueError) as error:
        raise failure_of(error, path) from error


def failure_of(error: Exception, path: str) -> PenstockError:
    """The Penstock error for one of a store, of the operating system or of an invalid path."""
    # What follows is a dump of the store's own structures, which helps no user.
    detail = str(error).split("\n\nDebug source")[0][:_DETAIL_CHARS_MAX]
    number = error.errno if isinstance(error, OSError) and error.errno is not None else _number_in(_OS_ERROR, error)
    status = _number_in(_HTTP_STATUS, error)
    if isinstance(error, FileNotFoundError) or number == errno.ENOENT:
        return NotFoundError(f"not found: {path}", detail=detail)
    if (missing := missing_credentials(str(error), path)) is not None:
        return missing
    if isinstance(error, _DENIED) or number in _PERMISSION or status in (401, 403):
        return UserError(
            f"permission denied: {path}",
            detail=detail,
            hint="give this user the right to list, read and write there, or correct the storage options",
        )
    if number in _FULL:
        return TransientError(f"no space left: {path}", detail=detail, hint="free space or raise the quota")
    if number in _BAD_PATH or isinstance(error, (ValueError, store_errors.InvalidPathError)):
        return UserError(f"not a usable path: {path}", detail=detail)
    refused = status is not None and 400 <= status < 500 and status not in _STATUS_WORTH_A_RETRY
    if refused or isinstance(error, store_errors.NotSupportedError):
        return UserError(f"the store refused: {path}", detail=detail, hint="check the url and the storage options")
    return TransientError(f"the store did not answer as it should: {path}", detail=detail)


def _number_in(pattern: re.Pattern[str], error: Exception) -> int | None:
    match = pattern.search(str(error))
    return int(match.group(1)) if match else None
