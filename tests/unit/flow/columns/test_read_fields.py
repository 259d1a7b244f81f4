"""Inferred columns are such that the job's own expressions can read them, whatever the first records were."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.flow.columns.computed import output_type
from penstock.flow.columns.read_fields import Shown, with_read_fields
from penstock.job.sql_text import parse_expression as parse

TEXT, WHOLE, REAL, TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


@pytest.mark.parametrize(
    ("event_time", "shown", "expected"),
    [
        ("kafka.timestamp", {"n": WHOLE}, {"n": WHOLE}),
        ("at", {"n": WHOLE}, {"n": WHOLE, "at": TEXT}),
        ("at", {"at": TEXT}, {"at": TEXT}),
        ("at", {"at": WHOLE}, {"at": TEXT}),
        ("at", {"at": struct(x=WHOLE)}, {"at": TEXT}),
        ("at", {"At": WHOLE, "AT": WHOLE}, {"at": TEXT}),
        ("timestamp_millis(at)", {}, {"at": WHOLE}),
        ("timestamp_millis(at)", {"at": TEXT}, {"at": WHOLE}),
        ("meta.at", {}, {"meta": struct(at=TEXT)}),
        ("meta.at", {"meta": TEXT}, {"meta": struct(at=TEXT)}),
        ("meta.at", {"meta": struct(n=WHOLE)}, {"meta": struct(n=WHOLE, at=TEXT)}),
        ("meta.at", {"meta": struct(at=TEXT, n=WHOLE)}, {"meta": struct(at=TEXT, n=WHOLE)}),
        ("coalesce(at, sent)", {"sent": WHOLE}, {"at": TEXT, "sent": TEXT}),
        ("coalesce(timestamp_millis(at), kafka.timestamp)", {"at": TRUTH}, {"at": WHOLE}),
    ],
)
def test_the_event_time_can_be_read(event_time: str, shown: Shown, expected: Shown) -> None:
    assert with_read_fields(shown, parse(event_time), []) == expected


@pytest.mark.parametrize(
    ("column", "shown", "expected"),
    [
        ("name", {"name": TRUTH}, {"name": TRUTH}),
        ("name", {}, {"name": TEXT}),
        ("upper(name)", {"name": WHOLE}, {"name": TEXT}),
        ("day(at)", {"at": WHOLE}, {"at": TEXT}),
        ("concat(a, '-', b)", {"a": WHOLE, "b": REAL}, {"a": WHOLE, "b": TEXT}),
        ("coalesce(a, b)", {"b": WHOLE}, {"a": WHOLE, "b": WHOLE}),
        ("coalesce(a, b)", {"a": TRUTH, "b": WHOLE}, {"a": TRUTH, "b": TRUTH}),
        ("coalesce(a, 0)", {}, {"a": WHOLE}),
        ("coalesce(a, 0)", {"a": REAL}, {"a": REAL}),
        ("coalesce(a, 'none')", {"a": WHOLE}, {"a": TEXT}),
        ("coalesce(a, null)", {}, {"a": TEXT}),
        ("'constant'", {}, {}),
    ],
)
def test_a_computed_column_can_be_read(column: str, shown: Shown, expected: Shown) -> None:
    result = with_read_fields(shown, parse("kafka.timestamp"), [parse(column)])
    assert result == expected
    output_type(parse(column), pa.schema(list(result.items())))
