"""One Parquet file that is being written, with the settings that all files of Penstock have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import PenstockError
from penstock.storage import Storage, StorageWriter

ROW_GROUP_ROWS_MAX = 1_000_000
DICTIONARY_PAGE_BYTES_MAX = 256 * 1024
"""A column of unique values gives its dictionary up sooner: measured, less CPU and no larger files."""
_SCHEMAS_KEPT_MAX = 512
WRITE_BYTES = 256 * 1024
"""Pages are gathered up to this: a small file is one call of its sink instead of fifty."""


class ParquetFile:
    """Opened when it is made; ends by `complete` or by `abandon`."""

    def __init__(self, storage: Storage, path: str, schema: pa.Schema, compression: str) -> None:
        self.path = path
        self.rows = 0
        self._footers: list[pq.FileMetaData] = []
        self._sink: StorageWriter = storage.open_writer(path)
        self._stream = pa.BufferedOutputStream(pa.PythonFile(self._sink, "w"), WRITE_BYTES)
        try:
            self._parquet = self._parquet_writer(schema, compression)
        except BaseException:
            # The first bytes are written at once, and no caller knows this file yet that could abandon it.
            self._sink.abandon()
            raise

    def _parquet_writer(self, schema: pa.Schema, compression: str) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            self._stream,
            schema,
            compression=compression,
            version="2.6",
            coerce_timestamps="us",
            allow_truncated_timestamps=True,
            use_dictionary=dictionary_columns(schema),
            dictionary_pagesize_limit=DICTIONARY_PAGE_BYTES_MAX,
            # Parquet's own schema is enough; Arrow's copy of it would only make footers longer.
            store_schema=False,
            metadata_collector=self._footers,
        )

    @property
    def size_bytes(self) -> int:
        return int(self._stream.tell())

    def write(self, rows: pa.Table, row_group_rows_max: int = ROW_GROUP_ROWS_MAX) -> None:
        """Add the rows as a row group, or as several if they are many."""
        self._parquet.write_table(rows, row_group_size=row_group_rows_max)
        self.rows += rows.num_rows

    def note(self, facts: Mapping[str, str]) -> None:
        """Add key-value metadata to the footer."""
        self._parquet.add_key_value_metadata(dict(facts))

    def complete(self) -> pq.FileMetaData:
        footer = self.end()
        self.close()
        return footer

    def end(self) -> pq.FileMetaData:
        """Write the last bytes; only `close`, which may be called in another thread, makes them durable."""
        self._parquet.close()
        self._stream.flush()
        return self._footers[0]

    def close(self) -> None:
        self._sink.close()

    def abandon(self) -> None:
        """Close the file after an error; vacuum deletes what was written (RULES C2)."""
        self._sink.abandon()
        try:
            # The last bytes go to a sink that drops them.
            self._parquet.close()
        except (pa.ArrowException, OSError, RuntimeError, PenstockError):
            # After a failed write pyarrow also misses the footer, with a RuntimeError; the error that led here counts.
            pass


@lru_cache(maxsize=_SCHEMAS_KEPT_MAX)
def dictionary_columns(schema: pa.Schema) -> bool | list[str]:
    """The columns whose values are worth a dictionary; wide numbers mostly differ from row to row.

    Measured: a quarter less CPU for writing, and smaller files. Parts of nested columns are not distinguished.
    """
    if any(pa.types.is_nested(kind) for kind in schema.types):
        return True
    wide = (pa.types.is_floating, pa.types.is_int64, pa.types.is_timestamp)
    return [item.name for item in schema if not any(is_one(item.type) for is_one in wide)]
