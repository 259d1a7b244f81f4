"""One port for object stores and local folders."""

from penstock.lake.storage.failures import NotFoundError
from penstock.lake.storage.files import Writer
from penstock.lake.storage.objects import MemoryStorage, open_storage
from penstock.lake.storage.port import Entry, Storage

__all__ = ["Entry", "MemoryStorage", "NotFoundError", "Storage", "Writer", "open_storage"]
