"""RULES P4: `sql:` is a projection and a row filter, bad rows bypass it, and one record cannot stop the others."""

from __future__ import annotations

import json

import polars as pl
import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.check import check
from penstock.errors import UserError
from penstock.lake.state import Totals
from penstock.tables.registry import load_job
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe, ids

BROKEN = '{"id": 1'


def orders(*texts: str | None) -> list[str]:
    return [json.dumps({"id": number, "text": text}) for number, text in enumerate(texts)]


def test_rows_are_projected_and_filtered_and_the_filtered_are_counted(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic(2)
    produce(name, ids(range(10)), partition=0)
    produce(name, [BROKEN, *ids(range(11, 14)), '{"id": null}'], partition=1)
    pipe.describe(
        name,
        sql="select: ['id * 2 as twice', 'partition', 'offset', 'upper(concat(''n'', id)) as label'],"
        " where: 'id % 2 = 1'",
    )
    pipe.run_to_end()
    assert pipe.rows("partition", "offset", "twice", "label") == [
        *((0, number, number * 2, f"N{number}") for number in (1, 3, 5, 7, 9)),
        (1, 1, 22, "N11"),
        (1, 3, 26, "N13"),
    ]
    assert pipe.quarantined() == [(1, 0)]
    assert pipe.totals() == Totals(read=15, written=7, quarantined=1, filtered=7)
    assert pipe.verified()


def test_a_projection_that_names_no_place_passes_it_on_also_into_a_table_made_without(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ids(range(7, 8)))
    pipe.describe(name, sql="select: ['id * 2 as twice']")
    pipe.run_to_end()
    assert pl.read_delta(pipe.table).columns == ["twice"]
    pipe.path.write_text(pipe.path.read_text().replace("place: none\n", ""))
    produce(name, ids(range(8, 9)))
    pipe.run_to_end()
    frame = pl.read_delta(pipe.table).sort("twice").select("twice", "kafka_partition", "kafka_offset", "kafka_topic")
    assert frame.rows() == [(14, None, None, None), (16, 0, 1, name)]


def test_bad_records_and_tombstones_bypass_expressions_that_fail_on_null(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ["{", '{"id": 7}', None, '{"id": "x"}'], key="k")
    pipe.describe(
        name, sql="select: ['*', 'coalesce(id, raise_error(''no id'')) as sure'], where: 'assert_true(id = 7) is null'"
    )
    recorder = pipe.run_to_end()
    assert pipe.rows("offset", "sure") == [(1, 7)]
    assert pipe.quarantined() == [(0, 0), (0, 3)]
    assert recorder.named("record isolated") == []
    assert pipe.totals() == Totals(read=4, written=1, quarantined=2, filtered=1)


def test_only_the_record_that_breaks_an_expression_is_quarantined(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    """An ANSI cast of Spark raises for one record; finding it takes several Spark jobs, so the batch is small."""
    name = topic(2)
    produce(name, orders("1", "two", None), partition=0)
    produce(name, orders("4"), partition=1)
    pipe.describe(
        name, schema="id: long, text: string", sql="select: ['partition', 'offset', 'cast(text as int) as number']"
    )
    recorder = pipe.run_to_end()
    assert pipe.rows("partition", "offset", "number") == [(0, 0, 1), (0, 2, None), (1, 0, 4)]
    [(partition, offset, error, value)] = pipe.quarantined("partition", "offset", "error", "value")
    assert (partition, offset) == (0, 1)
    assert error.startswith("[CAST_INVALID_INPUT]")
    assert json.loads(value) == {"id": 1, "text": "two"}
    assert [item["offset"] for item in recorder.named("record isolated")] == [1]
    assert pipe.totals() == Totals(read=4, written=3, quarantined=1)
    assert pipe.verified()


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        ("sum(id) as total", "sum"),
        ("explode(array(id, id)) as each", "explode"),
        ("row_number() over (order by id) as place", "window"),
        ("(select max(id) from other) as most", "select"),
    ],
)
def test_sql_that_groups_or_multiplies_records_is_refused(pipe: Pipe, select: str, reason: str) -> None:
    pipe.describe("any", sql=f"select: ['{select}']")
    with pytest.raises(UserError) as raised:
        load_job(pipe.path)
    assert reason in str(raised.value).lower() + raised.value.detail.lower()


def test_check_deep_finds_what_only_spark_knows_at_its_place(pipe: Pipe) -> None:
    pipe.describe("any", sql="select: ['id', 'no_such_function(id) as x'], where: 'nothing(id)'")
    app = typer.Typer()
    app.command()(check)
    assert CliRunner().invoke(app, [str(pipe.path)]).exit_code == 0
    result = CliRunner().invoke(app, ["--deep", "--json", str(pipe.path)])
    assert result.exit_code == 2
    [checked] = json.loads(result.stdout)
    line = next(at for at, text in enumerate(pipe.path.read_text().splitlines(), 1) if text.startswith("sql:"))
    faults = [(fault["key"], fault["line"], fault["message"]) for fault in checked["faults"]]
    assert [(key, at) for key, at, _ in faults] == [("sql.select[1]", line), ("sql.where", line)]
    assert "no_such_function" in faults[0][2] and "nothing" in faults[1][2]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("no_such_function(id)", "no_such_function"),
        ("every(id > 0)", "GROUP BY"),
        ('window(timestamp_seconds(id), "1 hour")', "Filter"),
        ('json_tuple(string(id), "a")', "GENERATOR"),
    ],
)
def test_sql_errors_stop_the_job_before_anything_is_created(
    pipe: Pipe, topic: Topics, produce: Produce, expression: str, reason: str
) -> None:
    name = topic()
    produce(name, ids(range(2)))
    pipe.describe(name, sql=f"select: ['{expression} as x']")
    with pytest.raises(UserError) as raised:
        pipe.run_to_end(retries=2)
    assert reason in str(raised.value) + raised.value.detail
    assert not (pipe.folder / "table").exists()
