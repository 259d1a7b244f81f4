from __future__ import annotations

import pickle

import pytest

from penstock.job.conditions import (
    AllOf,
    AnyOf,
    Comparison,
    Condition,
    IsNull,
    Not,
    condition_fields,
    read_condition,
)
from penstock.job.expressions import Constant, Field, KafkaField
from penstock.job.faults import InvalidValueError

A, B, C = Field(("a",)), Field(("b",)), Field(("c",))
ONE = Comparison(A, "=", Constant(1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gone", Field(("gone",))),
        ("a = 1", ONE),
        ("a == 1", ONE),
        ("1 = a", ONE),
        ("(a) = ((1))", ONE),
        ("a != 'it''s'", Comparison(A, "!=", Constant("it's"))),
        ('a <> "x"', Comparison(A, "!=", Constant("x"))),
        ("a < -1.5", Comparison(A, "<", Constant(-1.5))),
        ("-1.5 < a", Comparison(A, ">", Constant(-1.5))),
        ("3 >= a", Comparison(A, "<=", Constant(3))),
        ("a.b >= b", Comparison(Field(("a", "b")), ">=", B)),
        ("`a b` = true", Comparison(Field(("a b",)), "=", Constant(True))),
        ("`and`.from = 'x'", Comparison(Field(("and", "from")), "=", Constant("x"))),
        ("kafka.partition <= 5", Comparison(KafkaField("partition"), "<=", Constant(5))),
        ("a in (1, 2)", AnyOf((ONE, Comparison(A, "=", Constant(2))))),
        ("a NOT IN (1)", Not(AnyOf((ONE,)))),
        ("a is null", IsNull(A)),
        ("a is not null", Not(IsNull(A))),
        ("not a and b or c", AnyOf((AllOf((Not(A), B)), C))),
        ("not (a or b) and c", AllOf((Not(AnyOf((A, B))), C))),
        ("a and b and c", AllOf((A, B, C))),
        ("a or b and c", AnyOf((A, AllOf((B, C))))),
    ],
)
def test_a_condition_is_parsed_as_sql_reads_it(text: str, expected: Condition) -> None:
    assert read_condition(text) == expected
    assert pickle.loads(pickle.dumps(read_condition(text))) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be empty"),
        ("not", "not a condition"),
        ("a =", "not a condition"),
        ("a = 1 and", "not a condition"),
        ("a like 'x'", "not a condition"),
        ("a between 1 and 2", "not a condition"),
        ("a && b", "not a condition"),
        ("a = 'x", "not closed"),
        ("(a = 1", "not a condition"),
        ("a = 1; b", "more than one"),
        ("a = 1 -- b", "not a field or a value"),
        ("a in ()", "not a condition"),
        ("a in b", "not a condition"),
        ("a is 5", "not a condition"),
        ("lower(a)", "'lower(a)' is not a condition"),
        ("lower(a) = 'x'", "'lower(a)' is not a field or a value"),
        ("a + 1 = 2", "'a + 1' is not a field or a value"),
        ("a < b < c", "'a < b' is not a field or a value"),
        ("a = null", "write `is null`"),
        ("a in (1, null)", "write `is null`"),
        ("a in ('x', y)", "put text in quotes: 'y'"),
        ("1 = 1", "both constants"),
        ("true", "true is not a field"),
        ("'x' is null", "'x' is not a field"),
        ("kafka.ofset = 1", "did you mean kafka.offset?"),
        ("not " * 40 + "a", "32 levels"),
        ("(" * 2000 + "a" + ")" * 2000, "not a condition"),
    ],
)
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        read_condition(text)
    assert message in str(caught.value)


def test_a_long_list_of_alternatives_does_not_exhaust_the_stack() -> None:
    assert read_condition(" or ".join(["a = 1"] * 5000)) == AnyOf((ONE,) * 5000)


def test_the_fields_of_a_condition_are_listed_left_to_right() -> None:
    condition = read_condition("a = b or not (kafka.key is null and c in (1, 2))")
    assert list(condition_fields(condition)) == [A, B, KafkaField("key"), C, C]
