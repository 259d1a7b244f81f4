"""The files of a Delta table as their names on disk."""

from __future__ import annotations

from deltalake import DeltaTable

from penstock.lake.delta.files import active_files


def active_paths(handle: DeltaTable) -> frozenset[str]:
    return frozenset(file.path for file in active_files(handle))
