"""Text of more than 2 GiB, which Arrow cannot hold in one piece; the test needs several GB of memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import UserError
from penstock.tables.keyed.layout import Layout
from penstock.tables.keyed.merging.chunks import ChunkStore

MIB = 1 << 20
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("_sequence", pa.int64()), ("_tiebreak", pa.int64())])


def test_files_with_more_than_2_gib_in_a_column_are_refused_with_a_hint(tmp_path: Path) -> None:
    store = ChunkStore(str(tmp_path), {}, SCHEMA, Layout(("id",)), 10_000)
    files = []
    for part in range(3):
        ids = pa.array(range(part * 750, (part + 1) * 750))
        rows = pa.table([ids, pa.array(["x" * MIB] * 750), ids, ids], schema=SCHEMA)
        files += [file.path for file in store.write(rows, 0, lambda: "c.1." + "0" * 32 + ".pq")]
        del rows
    with pytest.raises(UserError, match="2250 rows of one bucket have 2250 MiB in the column text") as raised:
        store.sorted([store.read(path) for path in files])
    assert "chunk_rows" in raised.value.hint
