"""Writing files so that they are there after a crash, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make names that were added to or removed from a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file; after a crash it has its old content or the new one."""
    beside = path.with_name(f"{path.name}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    beside.replace(path)
    sync_folder(path.parent)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all bytes; a system call may take only some of them."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
