"""A partition value that no table can hold is a fault of its record: it is quarantined whole and stops nothing."""

from __future__ import annotations

import json
from datetime import date

import pytest

from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe

MICROS_AS_MILLIS = 1_790_000_000_000_000


@pytest.mark.parametrize("sql", ["", "select: [id, partition, offset, to_date(at) as day, written]"], ids=["", "sql"])
def test_days_outside_the_years_1_to_9999_are_quarantined_and_the_rest_is_written(
    pipe: Pipe, topic: Topics, produce: Produce, sql: str
) -> None:
    name = topic(config={"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**62)})
    sent = [
        json.dumps({"id": number, "at": at}) for number, at in enumerate(["2026-01-02", "0000-01-01", "9999-12-31"])
    ]
    produce(name, sent)
    produce(name, [json.dumps({"id": 3, "at": "2026-01-02"})], timestamp_ms=MICROS_AS_MILLIS)
    columns = "written: day(kafka.timestamp)" + ("" if sql else ", day: day(at)")
    pipe.describe(name, schema="id: long, at: string", columns=columns, partition_by="day, written", sql=sql)
    pipe.run_to_end()
    assert pipe.rows("id", "day") == [(0, date(2026, 1, 2)), (2, date(9999, 12, 31))]
    result = pipe.quarantined("offset", "value", "error")
    assert [(offset, value) for offset, value, _ in result] == [
        (1, sent[1].encode()),
        (3, b'{"id": 3, "at": "2026-01-02"}'),
    ]
    assert [error.split(":")[0] for _, _, error in result] == ["day", "written"]
    assert pipe.totals().quarantined == 2
    assert pipe.verified()
