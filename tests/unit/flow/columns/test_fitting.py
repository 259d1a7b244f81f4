"""Columns are one column whatever the case of their names, at every depth, and no value of a row is ever dropped."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import InvariantError, UserError
from penstock.flow.columns.fitting import by_folded_name, conflict, fit_array, fit_columns, grown, new_paths, respelled

INNER = pa.struct([("a", pa.int64()), ("b", pa.string())])


def test_a_column_that_differs_only_in_case_goes_to_the_columns_of_the_table() -> None:
    rows = pa.RecordBatch.from_pydict({"userId": [1, 2], "Day": ["x", "y"]})
    fitted = fit_columns(rows, pa.schema([("day", pa.string()), ("userid", pa.int32()), ("later", pa.bool_())]))
    assert fitted.to_pylist() == [
        {"day": "x", "userid": 1, "later": None},
        {"day": "y", "userid": 2, "later": None},
    ]


def test_fields_of_structs_and_of_structs_in_lists_are_matched_like_columns() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"Meta": [{"B": "x", "A": 1}, None, {"B": None, "A": 2}], "l": [[{"A": 1}, None], None, []]}
    )
    schema = pa.schema([("meta", INNER), ("L", pa.list_(INNER))])
    expected = [
        {"meta": {"a": 1, "b": "x"}, "L": [{"a": 1, "b": None}, None]},
        {"meta": None, "L": None},
        {"meta": {"a": 2, "b": None}, "L": []},
    ]
    assert fit_columns(rows, schema).to_pylist() == expected
    assert fit_columns(rows.slice(1), schema).to_pylist() == expected[1:]


@pytest.mark.parametrize(
    "columns",
    [{"a": [1], "more": [2]}, {"a": [1], "A": [2]}, {"a": [1], "s": [{"x": 1, "y": 2}]}],
    ids=["no such column", "two for one column", "no such field"],
)
def test_a_column_of_the_rows_without_a_place_is_an_error_and_never_dropped(columns: dict[str, list[object]]) -> None:
    schema = pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.int64())]))])
    with pytest.raises(InvariantError):
        fit_columns(pa.RecordBatch.from_pydict(columns), schema)


def test_a_plain_type_is_cast_and_one_that_does_not_fit_is_refused() -> None:
    assert fit_array(pa.array([1, 2], pa.int32()), pa.int64()).to_pylist() == [1, 2]
    with pytest.raises(pa.ArrowInvalid):
        fit_array(pa.array([2**40]), pa.int32())


def test_a_schema_grows_by_what_it_lacks_and_keeps_its_order_spelling_and_types() -> None:
    one = pa.schema([("id", pa.int64()), ("meta", pa.struct([("x", pa.int64())])), ("l", pa.list_(INNER))])
    other = pa.schema(
        [
            ("L", pa.list_(pa.struct([("c", pa.bool_()), ("A", pa.string())]))),
            ("META", pa.struct([("X", pa.int64()), ("y", INNER)])),
            ("new", pa.string()),
        ]
    )
    whole = grown(one, other)
    assert whole == pa.schema(
        [
            ("id", pa.int64()),
            ("meta", pa.struct([("x", pa.int64()), ("y", INNER)])),
            ("l", pa.list_(pa.struct([*INNER, ("c", pa.bool_())]))),
            ("new", pa.string()),
        ]
    )
    assert new_paths(one, whole) == ["meta.y", "l.c", "new"]
    assert conflict(one, other) == ("l.a", pa.int64(), pa.string())
    assert conflict(one, whole) is None
    assert respelled(one, other).names == ["id", "META", "L"]
    assert respelled(one, other).field("META").type == pa.struct([("X", pa.int64())])


@pytest.mark.parametrize("fields", [[("a", INNER), ("A", INNER)], [("s", pa.struct([("x", INNER), ("X", INNER)]))]])
def test_names_that_differ_only_in_case_are_refused(fields: list[tuple[str, pa.DataType]]) -> None:
    with pytest.raises(UserError, match="differ only in case"):
        by_folded_name(pa.schema(fields), "the table")
