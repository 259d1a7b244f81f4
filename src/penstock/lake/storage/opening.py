"""From a url and the storage options of a job to its storage."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import obstore.exceptions as store_errors
from obstore.store import LocalStore, from_url

from penstock.errors import UserError
from penstock.lake.storage.hdfs import HdfsStorage
from penstock.lake.storage.objects import ObjectStorage
from penstock.lake.storage.port import Storage

if TYPE_CHECKING:
    from obstore.store import ObjectStore

RETRIES_MAX = 5
RETRY_SECONDS_MAX = 60

_REMOTE = frozenset({"s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss"})
_S3 = frozenset({"s3", "s3a"})
_VENDOR = re.compile(r"^(aws|azure|google)_")
_CLIENT_KEYS = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
        "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only",
        "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes",
        "randomize_addresses", "read_timeout", "timeout", "user_agent",
    }
)  # fmt: skip
_RETRY_KEYS = frozenset({"max_retries", "retry_timeout"})
_ONLY_FOR_DELTALAKE = re.compile(
    r"(allow_unsafe_rename|locking_provider|dynamo|force_credential_load|backoff_config)", re.IGNORECASE
)


class OpenedStorage(ObjectStorage):
    """Travels to Spark tasks as its url and options."""

    def __init__(self, url: str, options: Mapping[str, str], store: ObjectStore, prefix: str = "") -> None:
        super().__init__(url, store, prefix)
        self._options = dict(options)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_storage, (self.url, self._options)


def open_storage(url: str, options: Mapping[str, str]) -> Storage:
    """The storage at a plain path, `file://`, `s3://`, `gs://`, `abfss://` or `hdfs://` url; nothing is sent yet."""
    scheme = urlsplit(url).scheme.lower()
    if scheme in ("", "file"):
        # Rooted at `/`: a store with a root of its own insists that the folder is there.
        return OpenedStorage(url, {}, LocalStore(), _local_folder(url))
    if scheme in _REMOTE:
        return OpenedStorage(url, options, _remote_store(url, options))
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
        raise UserError(f"cannot open {url}", detail=str(error).split("\n")[0]) from error


def _sorted_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, Any]]:
    """Store, client and retry options apart: obstore panics on a client option among those of the store."""
    config: dict[str, str] = {}
    client: dict[str, str] = {}
    retry: dict[str, Any] = {"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=RETRY_SECONDS_MAX)}
    for key, value in options.items():
        name = key.lower()
        plain = _VENDOR.sub("", name)
        if _ONLY_FOR_DELTALAKE.search(name):
            continue
        if plain in _CLIENT_KEYS:
            client[plain] = value
        elif plain in _RETRY_KEYS:
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
