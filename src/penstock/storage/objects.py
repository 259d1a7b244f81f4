"""The port over obstore: local folders, S3, GCS and Azure; and which storage a url means."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

import obstore
import obstore.exceptions as store_errors
from obstore.store import LocalStore, MemoryStore, from_url

from penstock.errors import OutcomeUnknownError, TransientError, UserError
from penstock.job.storage_options import CLIENT_OPTIONS, ONLY_FOR_DELTALAKE, RETRY_OPTIONS
from penstock.storage.failures import NotFoundError, failure_of, missing_credentials, translate_errors
from penstock.storage.files import (
    RangeReader,
    StorageWriter,
    make_durable,
    make_name_durable,
    open_local_writer,
    open_remote_writer,
    size_on_disk,
)
from penstock.storage.hdfs import HdfsStorage
from penstock.storage.port import Entry, Storage, by_folder

if TYPE_CHECKING:
    from obstore.store import ObjectStore

RETRIES_MAX = 5
RETRY_SECONDS_MAX = 60

_REMOTE = frozenset({"s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss"})
_S3 = frozenset({"s3", "s3a"})
_VENDOR = re.compile(r"^(aws|azure|google)_")
_TAKEN = (store_errors.AlreadyExistsError, store_errors.PreconditionError)


class ObjectStorage(Storage):
    """Objects of one obstore store, all below `prefix`."""

    def __init__(
        self, url: str, store: ObjectStore, prefix: str = "", options: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(url, f"{prefix.strip('/')}/" if prefix.strip("/") else "")
        self._store = store
        self._options = dict(options or {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Spark tasks get its url and options."""
        return open_storage, (self.url, self._options)

    @property
    def _is_local(self) -> bool:
        return isinstance(self._store, LocalStore)

    @property
    def keeps_source(self) -> bool:
        return not isinstance(self._store, (LocalStore, MemoryStore))

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        return self._listed(prefix.rstrip("/"), self._key(after) if after else None)

    def _listed(self, folder: str, offset: str | None) -> Iterator[Entry]:
        below = self._key(folder) if folder else self._root.rstrip("/")
        with translate_errors(self._shown(folder)):
            for chunk in obstore.list(self._store, below or None, offset=offset):
                for meta in chunk:
                    yield Entry(meta["path"].removeprefix(self._root), meta["size"], meta["last_modified"])

    def read(self, path: str) -> bytes:
        with translate_errors(self._shown(path)):
            return bytes(obstore.get(self._store, self._key(path)).bytes())

    def _read_range(self, path: str, start: int, length: int) -> bytes:
        with translate_errors(self._shown(path)):
            return bytes(obstore.get_range(self._store, self._key(path), start=start, length=length))

    def size_bytes(self, path: str) -> int:
        with translate_errors(self._shown(path)):
            return obstore.head(self._store, self._key(path))["size"]

    def sizes(self, paths: Iterable[str]) -> dict[str, int]:
        names = set(paths)
        if self._is_local:
            # On a disk one call per file is cheapest.
            asked = {path: size_on_disk("/" + self._key(path)) for path in names}
            return {path: size_bytes for path, size_bytes in asked.items() if size_bytes is not None}
        result: dict[str, int] = {}
        for folder, missing in by_folder(names).items():
            # One listing, begun right before the first of the names and ended with the last that is missing.
            for entry in self._listed(folder, self._key(min(missing))[:-1]):
                if entry.path in missing:
                    missing.discard(entry.path)
                    result[entry.path] = entry.size_bytes
                if not missing:
                    break
        # Names that a listing spells in another way.
        for path in names - result.keys():
            with suppress(NotFoundError):
                result[path] = self.size_bytes(path)
        return result

    def put(self, path: str, data: bytes) -> None:
        with translate_errors(self._shown(path)):
            obstore.put(self._store, self._key(path), data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        # One request: a multipart upload would be checked only when it completes.
        create = partial(obstore.put, self._store, self._key(path), data, mode="create", use_multipart=False)
        if not self._landed(create, path):
            return False
        # A conditional put is final: after a power loss the name must not be free again.
        if self._is_local:
            make_durable("/" + self._key(path))
        return True

    def rename_if_absent(self, source: str, target: str) -> bool:
        act = obstore.copy if self.keeps_source else obstore.rename
        if not self._landed(partial(act, self._store, self._key(source), self._key(target), overwrite=False), source):
            return False
        # The bytes are on the disk since their writer closed.
        if self._is_local:
            make_name_durable("/" + self._key(target))
        return True

    def delete(self, path: str) -> None:
        with suppress(NotFoundError), translate_errors(self._shown(path)):
            obstore.delete(self._store, self._key(path))

    def open_writer(self, path: str) -> StorageWriter:
        if self._is_local:
            return open_local_writer("/" + self._key(path))
        return open_remote_writer(self._store, self._key(path))

    def open_reader(self, path: str) -> IO[bytes]:
        return cast(IO[bytes], RangeReader(self.size_bytes(path), partial(self._read_range, path)))

    def _landed(self, act: Callable[[], object], path: str) -> bool:
        """Run a call that requires a free name; False if the name is taken."""
        try:
            act()
        except _TAKEN:
            return False
        except (store_errors.BaseError, OSError, ValueError) as error:
            failure = failure_of(error, self._shown(path))
            if isinstance(failure, TransientError) and not self._is_local:
                hint = "read the name back before acting"
                raise OutcomeUnknownError(failure.primary, detail=failure.detail, hint=hint) from error
            raise failure from error
        return True


def open_storage(url: str, options: Mapping[str, str]) -> Storage:
    """The storage at a plain path, `file://`, `s3://`, `gs://`, `abfss://` or `hdfs://` url; nothing is sent yet."""
    scheme = urlsplit(url).scheme.lower()
    if scheme in ("", "file"):
        # Rooted at `/`: a store with a prefix of its own requires that the folder exists.
        return ObjectStorage(url, LocalStore(), _local_folder(url))
    if scheme in _REMOTE:
        return ObjectStorage(url, _remote_store(url, options), options=options)
    if scheme == "hdfs":
        return HdfsStorage(url, options)
    raise UserError(f"no storage for {scheme}:// urls", detail=url, hint="use a path, file, s3, gs, abfss or hdfs")


def _local_folder(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme and parts.netloc not in ("", "localhost"):
        raise UserError("a file:// url names no host", detail=url, hint="write file:///path")
    return os.path.abspath(unquote(parts.path) if parts.scheme else url)


def _remote_store(url: str, options: Mapping[str, str]) -> ObjectStore:
    config, client, retry = _sorted_options(options)
    if urlsplit(url).scheme.lower() in _S3:
        # A multipart copy completed with If-None-Match is the one conditional copy that S3 has.
        config.setdefault("copy_if_not_exists", "multipart")
    try:
        return from_url(url, config=config, client_options=client or None, retry_config=retry)  # type: ignore[call-overload, no-any-return]
    except store_errors.UnknownConfigurationKeyError as error:
        raise UserError("unknown storage option", detail=str(error).split("\n")[0]) from error
    except (store_errors.BaseError, OSError, ValueError) as error:
        unopened = UserError(f"cannot open {url}", detail=str(error).split("\n")[0])
        raise missing_credentials(str(error), url) or unopened from error


def _sorted_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, Any]]:
    """Split store, client and retry options: obstore panics on a client option among those of the store."""
    config: dict[str, str] = {}
    client: dict[str, str] = {}
    retry: dict[str, Any] = {"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=RETRY_SECONDS_MAX)}
    for key, value in options.items():
        name = key.lower()
        plain = _VENDOR.sub("", name)
        if ONLY_FOR_DELTALAKE.search(name):
            continue
        if plain in CLIENT_OPTIONS:
            client[plain] = value
        elif plain in RETRY_OPTIONS:
            retry[plain] = _retry_value(plain, value)
        else:
            config[name] = value
    return config, client, retry


def _retry_value(name: str, value: str) -> int | timedelta:
    number = re.fullmatch(r"(\d+)s?", value.strip())
    if number is None:
        raise UserError(f"storage option {name} is not a number", detail=value, hint="write seconds, such as 30 or 30s")
    amount = int(number.group(1))
    return amount if name == "max_retries" else timedelta(seconds=amount)
