"""One interface for object stores, HDFS and local folders."""

from penstock.storage.failures import NotFoundError
from penstock.storage.files import StorageWriter
from penstock.storage.objects import open_storage
from penstock.storage.port import Entry, Storage

__all__ = ["Entry", "NotFoundError", "Storage", "StorageWriter", "open_storage"]
