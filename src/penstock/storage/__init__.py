"""One port for object stores and local folders."""

from penstock.storage.objects import MemoryStorage
from penstock.storage.opening import open_storage
from penstock.storage.port import Entry, NotFoundError, Storage, Writer

__all__ = ["Entry", "MemoryStorage", "NotFoundError", "Storage", "Writer", "open_storage"]
