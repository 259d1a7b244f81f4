from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.job.expressions import (
    KAFKA_NAMES,
    Call,
    Constant,
    Expression,
    Field,
    KafkaField,
    fields,
    to_text,
)
from penstock.job.faults import InvalidValueError
from penstock.job.sql_text import parse_expression as parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method", Field(("method",))),
        (" meta.producer.timestamp ", Field(("meta", "producer", "timestamp"))),
        ("`user-agent`.`@x`", Field(("user-agent", "@x"))),
        ("from.select", Field(("from", "select"))),
        ("`a.b c`.d", Field(("a.b c", "d"))),
        ("`tick``ed`", Field(("tick`ed",))),
        ("größe", Field(("größe",))),
        ("kafka.offset", KafkaField("offset")),
        ("`kafka`.offset", Field(("kafka", "offset"))),
        ("kafka", Field(("kafka",))),
        ("'it''s'", Constant("it's")),
        ('"so ""hi"""', Constant('so "hi"')),
        ("''", Constant("")),
        ("12", Constant(12)),
        ("-9223372036854775808", Constant(-(2**63))),
        ("-1.5", Constant(-1.5)),
        ("2e3", Constant(2000.0)),
        ("true", Constant(True)),
        ("null", Constant(None)),
        ("day(at)", Call("day", (Field(("at",)),))),
        ("substr(url, 1, 4)", Call("substr", (Field(("url",)), Constant(1), Constant(4)))),
        (
            "hour(coalesce(timestamp_millis(a), kafka.timestamp))",
            Call("hour", (Call("coalesce", (Call("timestamp_millis", (Field(("a",)),)), KafkaField("timestamp"))),)),
        ),
    ],
)
def test_an_expression_is_parsed_as_written(text: str, expected: Expression) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "a..b",
        "a.",
        "day(",
        "day(x",
        "day(x))",
        "day()",
        "day(a, b)",
        "coalesce(a)",
        "a + b",
        "'open",
        "1a",
        "9223372036854775808",
        "1e999",
        "kafka.headers.x",
        "substr(a, b, 1)",
        "substr(a, 0, 1)",
        "substr(a, 1, -1)",
        "substr(a, true, 1)",
        "user-agent",
        "a; b",
        "a -- b",
        "f(*)",
        "a.b(c)",
    ],
)
def test_an_invalid_expression_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("dya(x)", "did you mean day?"), ("DAY(x)", "did you mean day?"), ("kafka.ofset", "did you mean kafka.offset?")],
)
def test_a_misspelt_name_is_reported_with_the_closest_match(text: str, hint: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse(text)
    assert caught.value.hint == hint


def test_endless_nesting_is_refused_and_does_not_exhaust_the_stack() -> None:
    with pytest.raises(InvalidValueError):
        parse("lower(" * 5000 + "a" + ")" * 5000)


def test_the_fields_of_an_expression_are_listed_left_to_right() -> None:
    assert list(fields(parse("concat(a.b, '-', lower(c), kafka.topic)"))) == [Field(("a", "b")), Field(("c",))]


_names = st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable())
_leaves: st.SearchStrategy[Expression] = st.one_of(
    st.lists(_names, min_size=1, max_size=3).map(lambda path: Field(tuple(path))),
    st.sampled_from(KAFKA_NAMES).map(KafkaField),
    st.one_of(st.text(max_size=8), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.none()).map(Constant),
    st.floats(allow_nan=False, allow_infinity=False).map(Constant),
)
_expressions = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        inner.map(lambda arg: Call("day", (arg,))),
        st.lists(inner, min_size=2, max_size=3).map(lambda args: Call("coalesce", tuple(args))),
        inner.map(lambda arg: Call("substr", (arg, Constant(2), Constant(0)))),
    ),
    max_leaves=6,
)


@given(_expressions)
def test_a_written_expression_reads_back_the_same(expression: Expression) -> None:
    assert parse(to_text(expression)) == expression


@given(st.text(max_size=40))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    with suppress(InvalidValueError):
        parse(text)
