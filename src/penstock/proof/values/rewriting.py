"""Writes records of the log once more, with the job's own flow, into a folder that is thrown away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from penstock.flow.write.manifest import StagedFile
from penstock.logs.log import Slice
from penstock.proof.offsets.table import DataFile
from penstock.proof.values.files import ValueFile

BATCH_ID = "verify"


class Rewriter(Protocol):
    """Gives the files that the job would write for records of one partition."""

    def written(self, piece: Slice, records: Iterable[pa.RecordBatch], folder: Path) -> Iterator[ValueFile]:
        """The files of `records`, which are of this slice, below an empty folder."""


def data_file(file: StagedFile) -> DataFile:
    return DataFile(file.path, file.rows, file.size_bytes)
