from __future__ import annotations

import pytest

from penstock.job.faults import InvalidValueError
from penstock.job.sql_text import SelectItem, read_select, read_where


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("status", SelectItem("status", ("status",), ("status",))),
        ("meta.Producer.at", SelectItem("at", ("meta", "Producer", "at"), ("meta",))),
        ("`user name`", SelectItem("user name", ("user name",), ("user name",))),
        ("status as Code", SelectItem("Code", ("status",), ("status",))),
        ("status AS `my code`", SelectItem("my code", ("status",), ("status",))),
        ("upper(method) as method", SelectItem("method", None, ("method",))),
        ("cast(status as long) as status", SelectItem("status", None, ("status",))),
        ("status + 1 as next", SelectItem("next", None, ("status",))),
        ("'select sum(x) from y' as s", SelectItem("s", None)),
        ("upper(method) shout", SelectItem("shout", None, ("method",))),
        ("case when status > 1 then 'a' else 'b' end as c", SelectItem("c", None, ("status",))),
        ("a -- b", SelectItem("a", ("a",), ("a",))),
        ("a.b.c.d.e", SelectItem("e", ("a", "b", "c", "d", "e"), ("a",))),
        ("tags[0].name as c", SelectItem("c", None, ("tags",))),
        ("null as nothing", SelectItem("nothing", None)),
        ("tags[0] as first", SelectItem("first", None, ("tags",))),
        ("meta.order as o", SelectItem("o", ("meta", "order"), ("meta",))),
        ("filter(tags, t -> t is not null) as tags", SelectItem("tags", None)),
        ("extract(year from cast(at as timestamp)) as year", SelectItem("year", None, ("at",))),
        ("greatest(a, b) as most", SelectItem("most", None, ("a", "b"))),
        ("a * b as product", SelectItem("product", None, ("a", "b"))),
        ("count", SelectItem("count", ("count",), ("count",))),
        ("`from` as source", SelectItem("source", ("from",), ("from",))),
    ],
)
def test_an_expression_over_one_row_is_accepted_with_its_name(text: str, expected: SelectItem) -> None:
    assert read_select(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sum(status) as s", "aggregate"),
        ("COUNT (*) as n", "aggregate"),
        ("max(status) as m", "aggregate"),
        ("row_number() over (order by x) as n", "window function"),
        ("explode(tags) as tag", "generator"),
        ("(select max(x) from t) as m", "subquery"),
        ("x from y", "unexpected 'from'"),
        ("count(distinct x) as n", "aggregate"),
        ("a, b", "unexpected ','"),
        ("upper(a", "unexpected"),
        ("a)", "unexpected"),
        ("(a]", "unexpected"),
        ("a; drop table x", "unexpected 'drop'"),
        ("a; b", "more than one"),
        ("'open", "not an SQL expression"),
        ("_penstock_offset as o", "_penstock"),
        ("t.*", "cannot be part of an expression"),
        ("upper(a)", "no name"),
        ("a + b", "no name"),
        ("true", "no name"),
        ("as a", "unexpected 'a'"),
        ("a as b as c", "unexpected 'as'"),
        ("a as (b, c)", "more than one"),
        ("case when a then b end", "no name"),
        ("(" * 3000, "not an SQL expression"),
        ("  ", "not an SQL expression"),
    ],
)
def test_further_sql_clauses_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason):
        read_select(text)


@pytest.mark.parametrize(
    "text",
    [
        "status >= 400",
        "method like any ('G%', 'P%')",
        "note <> 'group by x; -- select'",
        "a is not distinct from b",
        "`select` = 1",
        "exists(tags, t -> t = 'x')",
        "trim(both ' ' from method) = 'GET'",
        'method = "join"',
        "x = 'it\\'s select'",
        "a = 1 and (b = 2 or c in (3, 4))",
    ],
)
def test_a_condition_over_one_row_is_accepted(text: str) -> None:
    read_where(text)


def test_columns_of_a_condition_are_known_unless_it_has_names_of_its_own() -> None:
    assert read_where("a.b = 1 and (upper(`c d`) = 'X' or a.e is null)") == ("a", "c d")
    assert read_where("exists(tags, t -> t = other)") == ()


@pytest.mark.parametrize(
    "text",
    [
        "status in (select status from x)",
        "sum(status) > 1",
        "any(status > 1)",
        "status > 1 group by status",
        "status > 1 order  by status",
        "a join b",
        "status > 1 as big",
        "lag(status) > 1",
        "a union b",
        "lateral view explode(x)",
        "posexplode_outer(x)",
        "status > 1) or (1 = 1",
    ],
)
def test_a_condition_that_reaches_beyond_its_row_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        read_where(text)
