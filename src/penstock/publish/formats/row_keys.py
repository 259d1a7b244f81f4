"""Texts of columns as bytes, and the column that becomes the key of a record."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

KEY_COLUMN = "series"
"""Rows with the same text in it stay in one partition, in order."""


def record_keys(rows: pa.Table) -> list[bytes]:
    return text_bytes(pl.Series(rows[KEY_COLUMN]))


def text_bytes(texts: pl.Series) -> list[bytes]:
    return texts.cast(pl.Binary).to_list()
