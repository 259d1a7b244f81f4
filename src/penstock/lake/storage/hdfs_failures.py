"""What went wrong in HDFS, told as an error that says what to do next."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError, TransientError, UserError
from penstock.lake.storage.failures import NotFoundError

LIBRARY_ERRORS = (OSError, RuntimeError, ValueError, NotImplementedError)
"""What hdfs-native raises: builtins for what it knows, `RuntimeError` with the name of a Java class for the rest."""

_JAVA_CLASS = re.compile(r'RPCError\("(?:[\w.]+\.)?(?:\w+\$)?(\w+)", "')
_DETAIL_CHARS_MAX = 500
_DENIED = frozenset({"AccessControlException", "AuthorizationException", "InvalidToken"})
_BAD_PATH = frozenset(
    {
        "InvalidPathException", "MaxDirectoryItemsExceededException", "ParentNotDirectoryException",
        "PathComponentTooLongException", "PathIsNotEmptyDirectoryException",
    }
)  # fmt: skip
_QUOTA = "QuotaExceededException"
_REFUSED = ("SASLError", "GSSAPIError", "NoSASLMechanism", "InvalidArgument", "UrlParseError", "XmlParseError")


@contextmanager
def hdfs_told_as_ours(path: str) -> Iterator[None]:
    """Turn whatever hdfs-native raises inside the block into an error of the tree."""
    try:
        yield
    except LIBRARY_ERRORS as error:
        raise hdfs_failure(error, path) from error


def hdfs_failure(error: Exception, path: str) -> PenstockError:
    """The error of the tree for one of hdfs-native."""
    detail = _short(error)
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"not found: {path}", detail=detail)
    java = _java_class(error)
    if java in _DENIED:
        return UserError(
            f"permission denied: {path}",
            detail=detail,
            hint="give this user the right to list, read and write there, or correct the storage option hdfs_user",
        )
    if java.endswith(_QUOTA):
        return TransientError(f"no space left: {path}", detail=detail, hint="free space or raise the quota")
    if java in _BAD_PATH or isinstance(error, (FileExistsError, IsADirectoryError, ValueError)):
        return UserError(f"not a usable path: {path}", detail=detail)
    if isinstance(error, NotImplementedError) or str(error).startswith(_REFUSED):
        return UserError(f"HDFS refused: {path}", detail=detail, hint="check the url and the storage options")
    return TransientError(f"HDFS did not answer as it should: {path}", detail=detail)


def is_clear(error: Exception) -> bool:
    """Whether the error says that nothing was done, not even by an earlier request whose answer was lost."""
    return _java_class(error).endswith(_QUOTA) or isinstance(hdfs_failure(error, ""), UserError)


def _java_class(error: Exception) -> str:
    found = _JAVA_CLASS.search(str(error))
    return found.group(1) if found else ""


def _short(error: Exception) -> str:
    # What follows is Java's stack, with its line ends written out where the text is a value within a value.
    return re.split(r"(?:\n|\\n)(?:\t|\\t)at ", str(error))[0][:_DETAIL_CHARS_MAX]
