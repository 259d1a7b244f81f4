"""The port over hdfs-native: folders of an HDFS cluster, without Java."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any, cast

from hdfs_native import Client, FileReader, FileStatus, FileWriter, WriteOptions

from penstock.errors import OutcomeUnknownError, PenstockError, TransientError, UserError
from penstock.storage.failures import NotFoundError
from penstock.storage.files import RangeReader, StorageWriter
from penstock.storage.port import Entry, Storage, by_folder

ATTEMPTS_MAX = 5
"""Attempts for a request to a NameNode that cannot be reached; the library's default of 15 takes three minutes."""

_DEFAULTS = {"dfs.client.failover.max.attempts": str(ATTEMPTS_MAX)}
_FOLDER_MODE = 0o755
_ASIDE = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
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


class HdfsWriter(StorageWriter):
    """A file being written; an abandoned file is deleted."""

    def __init__(self, sink: FileWriter, shown: str, remove: Callable[[], None]) -> None:
        super().__init__(sink, shown, translate_hdfs_errors)
        self._remove = remove

    def abandon(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            # Before the library lets go of the writer, which would complete the half file.
            self._remove()


class HdfsStorage(Storage):
    """Files below the folder of an `hdfs://` url; Spark tasks get its url and options.

    Small files are written under a hidden name that no listing shows, and renamed when they are complete.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._cluster, root = _split(url)
        super().__init__(url, f"{root}/")
        self._options = dict(options)
        with translate_hdfs_errors(url):
            self._client = Client(self._cluster, _configuration(options))

    def __reduce__(self) -> tuple[Any, ...]:
        return HdfsStorage, (self.url, self._options)

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        folders = [self._key(prefix.rstrip("/")) if prefix else self._root.rstrip("/") or "/"]
        beyond = self._key(after) if after else ""
        while folders:
            folder = folders.pop()
            for status in self._children(folder):
                # Of a file, HDFS lists the file itself.
                if status.path == folder:
                    continue
                if status.isdir:
                    # All that is below it sorts before `after`, unless `after` lies in it.
                    if f"{status.path}/" > beyond or beyond.startswith(f"{status.path}/"):
                        folders.append(status.path)
                elif status.path > beyond and not _ASIDE.fullmatch(status.path.rsplit("/", 1)[-1]):
                    yield self._entry(status)

    def read(self, path: str) -> bytes:
        with translate_hdfs_errors(self._shown(path)):
            return self._client.read(self._key(path)).read()

    def size_bytes(self, path: str) -> int:
        with translate_hdfs_errors(self._shown(path)):
            status = self._client.get_file_info(self._key(path))
        if status.isdir:
            raise NotFoundError(f"not found: {self._shown(path)}", detail="it is a folder")
        return status.length

    def sizes(self, paths: Iterable[str]) -> dict[str, int]:
        result: dict[str, int] = {}
        for folder, names in by_folder(paths).items():
            for status in self._children(self._key(folder) if folder else self._root.rstrip("/") or "/"):
                entry = self._entry(status)
                if entry.path in names and not status.isdir:
                    result[entry.path] = entry.size_bytes
        return result

    def put(self, path: str, data: bytes) -> None:
        aside = self._write_aside(path, data)
        try:
            with translate_hdfs_errors(self._shown(path)):
                self._client.rename(aside, self._key(path), True)
        except NotFoundError as error:
            # The library repeats a request whose answer was lost: it was done, or the folder was deleted.
            raise TransientError(f"unknown whether it was written: {self._shown(path)}") from error
        except PenstockError:
            self._drop(aside)
            raise

    def put_if_absent(self, path: str, data: bytes) -> bool:
        # An optimisation: the rename decides.
        if self.exists(path):
            return False
        aside = self._write_aside(path, data)
        landed = False
        try:
            landed = self._rename(aside, path)
        except FileNotFoundError as error:
            # The library repeats a request whose answer was lost, and then finds it done.
            raise self._unknown(error, path) from error
        finally:
            if not landed:
                # A request that is still under way then finds nothing to rename.
                self._drop(aside)
        return landed

    def rename_if_absent(self, source: str, target: str) -> bool:
        try:
            try:
                return self._rename(self._key(source), target)
            except FileNotFoundError:
                self.size_bytes(source)
                with translate_hdfs_errors(self._shown(target)):
                    self._client.mkdirs(self._key(target).rpartition("/")[0], _FOLDER_MODE, True)
                return self._rename(self._key(source), target)
        except FileNotFoundError as error:
            raise hdfs_failure(error, self._shown(source)) from error

    def delete(self, path: str) -> None:
        with translate_hdfs_errors(self._shown(path)), suppress(FileNotFoundError):
            self._client.delete(self._key(path), False)

    def open_writer(self, path: str) -> HdfsWriter:
        key = self._key(path)
        with translate_hdfs_errors(self._shown(path)):
            sink = self._client.create(key, WriteOptions(overwrite=True, create_parent=True))
        return HdfsWriter(sink, self._shown(path), lambda: self._drop(key))

    def open_reader(self, path: str) -> IO[bytes]:
        with translate_hdfs_errors(self._shown(path)):
            # The blocks of the file are known then: ranges of it are read without asking the NameNode again.
            reader = self._client.read(self._key(path))
        return cast(IO[bytes], RangeReader(len(reader), partial(self._read_range, path, reader)))

    def _read_range(self, path: str, reader: FileReader, start: int, length: int) -> bytes:
        with translate_hdfs_errors(self._shown(path)):
            return reader.read_range(start, length)

    def _children(self, folder: str) -> Iterator[FileStatus]:
        """Lists folder by folder: one that is deleted meanwhile ends only its own part of the listing."""
        with translate_hdfs_errors(f"{self._cluster}{folder}"), suppress(FileNotFoundError):
            yield from self._client.list_status(folder, False)

    def _entry(self, status: FileStatus) -> Entry:
        modified_at = datetime.fromtimestamp(status.modification_time / 1000, UTC)
        return Entry(status.path.removeprefix(self._root), status.length, modified_at)

    def _write_aside(self, path: str, data: bytes) -> str:
        folder, _, name = self._key(path).rpartition("/")
        aside = f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
        with translate_hdfs_errors(self._shown(path)):
            sink = self._client.create(aside, WriteOptions(overwrite=False, create_parent=True))
        writer = HdfsWriter(sink, self._shown(path), lambda: self._drop(aside))
        try:
            writer.write(data)
            writer.close()
        except BaseException:
            writer.abandon()
            raise
        return aside

    def _rename(self, source_key: str, target: str) -> bool:
        """Rename without overwriting, one step on the NameNode; False if the name is taken."""
        try:
            self._client.rename(source_key, self._key(target), False)
        except FileExistsError:
            return False
        except FileNotFoundError:
            raise
        except LIBRARY_ERRORS as error:
            failure = hdfs_failure(error, self._shown(target))
            # These mean that nothing was done, not even by an earlier request whose answer was lost.
            if isinstance(failure, UserError) or _java_class(error).endswith(_QUOTA):
                raise failure from error
            raise self._unknown(error, target) from error
        return True

    def _unknown(self, error: Exception, path: str) -> OutcomeUnknownError:
        detail = hdfs_failure(error, path).detail
        primary = f"HDFS did not answer as it should: {self._shown(path)}"
        return OutcomeUnknownError(primary, detail=detail, hint="read the name back before acting")

    def _drop(self, key: str) -> None:
        """Try to remove a temporary file; one that stays is hidden, or left to vacuum."""
        with suppress(*LIBRARY_ERRORS):
            self._client.delete(key, False)


def _split(url: str) -> tuple[str, str]:
    """The cluster of a url, and its path without a slash at the end; nothing is decoded, as in Hadoop."""
    authority, _, path = url.partition("://")[2].partition("/")
    root = path.strip("/")
    if root and any(part in ("", ".", "..") for part in root.split("/")):
        raise UserError(f"not a path in HDFS: {url}")
    return f"hdfs://{authority}", f"/{root}" if root else ""


def _configuration(options: Mapping[str, str]) -> dict[str, str]:
    """The Hadoop settings, which are all options that HDFS has."""
    for name in options:
        if "." not in name:
            hint = "HDFS takes Hadoop settings such as dfs.*; the variable HADOOP_USER_NAME sets the user"
            raise UserError(f"unknown storage option {name}", hint=hint)
    return {**_DEFAULTS, **options}


@contextmanager
def translate_hdfs_errors(path: str) -> Iterator[None]:
    """Turn errors of hdfs-native inside the block into Penstock errors."""
    try:
        yield
    except LIBRARY_ERRORS as error:
        raise hdfs_failure(error, path) from error


def hdfs_failure(error: Exception, path: str) -> PenstockError:
    """The Penstock error for one of hdfs-native."""
    # What follows is Java's stack trace, whose line ends may be escaped.
    detail = re.split(r"(?:\n|\\n)(?:\t|\\t)at ", str(error))[0][:_DETAIL_CHARS_MAX]
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"not found: {path}", detail=detail)
    java = _java_class(error)
    if java in _DENIED:
        return UserError(
            f"permission denied: {path}",
            detail=detail,
            hint="give this user the right to list, read and write there, or set another one in HADOOP_USER_NAME",
        )
    if java.endswith(_QUOTA):
        return TransientError(f"no space left: {path}", detail=detail, hint="free space or raise the quota")
    if java in _BAD_PATH or isinstance(error, (FileExistsError, IsADirectoryError, ValueError)):
        return UserError(f"not a usable path: {path}", detail=detail)
    if isinstance(error, NotImplementedError) or str(error).startswith(_REFUSED):
        return UserError(f"HDFS refused: {path}", detail=detail, hint="check the url and the storage options")
    return TransientError(f"HDFS did not answer as it should: {path}", detail=detail)


def _java_class(error: Exception) -> str:
    match = _JAVA_CLASS.search(str(error))
    return match.group(1) if match else ""
