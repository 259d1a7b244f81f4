"""How Spark's Arrow batches are cut where it cannot know how large the next record is."""

from __future__ import annotations

import pytest

from penstock.logs.kafka.sizes import rows_for

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("record_bytes_max", "rows"), [(1, 10_000), (10_000, 10_000), (MIB, 256), (10 * MIB, 25), (100 * MIB, 16)]
)
def test_records_as_large_as_the_topic_allows_fill_sixteen_batches_at_most(record_bytes_max: int, rows: int) -> None:
    assert rows_for(16 * MIB, record_bytes_max) == rows
