"""The footers of an export's files: they show enough to restore positions from the files alone (RULES E6)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from penstock.errors import InvariantError
from penstock.logs.log import Partition
from penstock.storage import Storage

FOOTER_KEY = "penstock"
DAMAGED_FILE = "the file is damaged or foreign: restore a good copy, or delete the folder of its day"


class WrittenFile(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A file of a slice or of a replay as its task wrote it; its rows may be in a compacted file by now."""

    topic: str
    topic_id: str
    number: int
    batch: str
    type: str
    day: str
    start: int
    end: int
    """It has all records of its type from `start` to here, together with the other files of the slice or replay."""
    last: int
    """The offset of its last record."""
    after: int = 0
    """The end of the last slice before that has files of the type, so that a missing file is noticed."""
    task: str = ""
    """A random id of the task that wrote it, one of so many `tasks` of the slice."""
    tasks: int = 1
    types: Mapping[str, int] | None = None
    """How many files of each type its task wrote; None if it was closed before the task ended."""
    run: int = 0
    """Of a replay, which has no slice."""
    path: str = ""
    """Like `rows`, known once the file has its final name."""
    rows: int = 0

    @property
    def partition(self) -> Partition:
        return Partition(self.topic, self.topic_id, self.number)


class Footer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="v", tag=2):
    """What Penstock adds to the footer of a Parquet file."""

    job: str
    written: tuple[WrittenFile, ...]
    """The files whose rows it holds: itself, or those of which a compaction merged the rows."""
    inputs: tuple[str, ...] = ()
    """The files that a compacted file replaces."""

    @property
    def as_metadata(self) -> dict[str, str]:
        return {FOOTER_KEY: msgspec.json.encode(self).decode()}


def read_footer(storage: Storage, path: str) -> tuple[Footer, pq.FileMetaData]:
    """Raises `NotFoundError` for a file that was deleted and `InvariantError` for a damaged or foreign one."""
    try:
        with storage.open_reader(path) as source:
            metadata = pq.read_metadata(source)
        footer = msgspec.json.decode((metadata.metadata or {}).get(FOOTER_KEY.encode(), b""), type=Footer)
    except (pa.ArrowException, ValueError, msgspec.DecodeError) as error:
        raise InvariantError(f"cannot read the footer of {path}", detail=str(error), hint=DAMAGED_FILE) from error
    if footer.inputs:
        return footer, metadata
    written = tuple(replace(file, path=path, rows=metadata.num_rows) for file in footer.written)
    return replace(footer, written=written), metadata
