"""Staged files are looked at before a commit names them: what a task reported need not be where readers look."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import TransientError
from penstock.flow.write.manifest import StagedFile
from penstock.lake.storage import Storage


class StagedFileGoneError(TransientError):
    """A staged file is not there, or not whole, before its commit: the batch has to be written again."""


def check_staged(storage: Storage, files: Iterable[StagedFile]) -> None:
    """Raise `StagedFileGoneError` unless every file is there in its whole size (RULES C7)."""
    wanted = {file.path: file.size_bytes for file in files}
    found = storage.sizes(wanted) if wanted else {}
    for path, size_bytes in wanted.items():
        if found.get(path) == size_bytes:
            continue
        there = f"it has {found[path]} of {size_bytes} bytes" if path in found else "it is not there"
        raise StagedFileGoneError(
            f"a staged file is not as its task wrote it: {storage.url.rstrip('/')}/{path}",
            detail=f"{there}; nothing was committed",
            hint="does every executor write to the same storage? A local path must be a folder that all of them share",
        )
