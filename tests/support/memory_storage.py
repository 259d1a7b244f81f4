"""A storage in memory: nothing outlives the process, and nothing is shared with another."""

from __future__ import annotations

from obstore.store import MemoryStore

from penstock.storage.objects import ObjectStorage


class MemoryStorage(ObjectStorage):
    def __init__(self) -> None:
        super().__init__("memory://", MemoryStore())
