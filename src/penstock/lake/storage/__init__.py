"""One port for object stores and local folders."""

from penstock.lake.storage.objects import MemoryStorage
from penstock.lake.storage.opening import open_storage
from penstock.lake.storage.port import Entry, NotFoundError, Storage, Writer

__all__ = ["Entry", "MemoryStorage", "NotFoundError", "Storage", "Writer", "open_storage"]
