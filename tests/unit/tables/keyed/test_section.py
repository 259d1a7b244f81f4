"""The section `table.keyed`: what a job file may state, and every fault with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.job.conditions import Comparison, read_condition
from penstock.job.expressions import Constant, Field
from penstock.job.faults import JobFileError
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.registry import load_job

BASE = """\
job: keyed
log: {{kafka: {{bootstrap: "nowhere:9092", topics: [events]}}}}
decode: json
schema: {{device: string, at: timestamp, number: long, share: double, tags: [string], gone: boolean, state: string}}
table: {{keyed: {{path: /lake/keyed{more}}}}}
{further}"""
Load = Callable[..., KeyedSpec]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def loading(more: str, further: str = "") -> KeyedSpec:
        path = tmp_path / "job.yaml"
        path.write_text(BASE.format(more=f", {more}" if more else "", further=further))
        table = load_job(path).table
        assert isinstance(table, KeyedSpec)
        return table

    return loading


def faults(load: Load, more: str, further: str = "") -> list[tuple[str, str]]:
    with pytest.raises(JobFileError) as caught:
        load(more, further)
    return [(fault.key, fault.message) for fault in caught.value.faults]


def test_omitted_keys_have_their_defaults(load: Load) -> None:
    spec = load("row_keys: [number]")
    assert spec.layout.row_keys == ("number",) and spec.layout.partition_keys == ()
    assert (spec.layout.sequence, spec.layout.delete, spec.layout.merge, spec.layout.buckets) == (None, None, False, 16)
    assert (spec.partition_by, spec.tombstones_place.path) == (("_bucket",), "/lake/keyed_tombstones")


def test_every_key_is_read(load: Load) -> None:
    spec = load(
        "partition_keys: [device, state], row_keys: [number], sequence: at, delete: \"state = 'gone'\", "
        "partial_updates: merge, buckets: 4, chunk_rows: 100, tombstone_retention: 2d"
    )
    assert spec.layout.partition_keys == ("device", "state")
    assert spec.layout.delete == Comparison(Field(("state",)), "=", Constant("gone"))
    assert (spec.layout.sequence, spec.layout.merge, spec.layout.buckets) == ("at", True, 4)
    assert (spec.chunk_rows, spec.tombstone_retention_seconds) == (100, 172_800)


@pytest.mark.parametrize(
    "text",
    ["gone", "gone = false", "number == 7", "state in ('gone', 'left') or at < '2026-01-01' and not gone"],
)
def test_a_delete_is_a_condition_over_columns(load: Load, text: str) -> None:
    assert load(f'row_keys: [number], delete: "{text}"').layout.delete == read_condition(text)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("nothing", "the schema has no field nothing", "there are: device"),
        ("state == order_cancelled", "there is no field order_cancelled", "put text in quotes: 'order_cancelled'"),
        ("state = gone", "state is string, and gone is boolean", "put text in quotes: 'gone'"),
        ("number = 'x'", "number is long, and 'x' is not a value of this type", ""),
        ("state", "state is string, not true or false", "write state = ..."),
        ("kafka.offset = 5", "kafka.offset is not a column", "compute it: columns: {name: kafka.offset}"),
        ("lower(state) = 'x'", "'lower(state)' is not a field or a value", "a condition has ="),
        ("state ~ 'x'", "is not a condition: unexpected '~'", "a condition has ="),
    ],
)
def test_a_delete_that_fits_no_column_is_a_fault(load: Load, text: str, message: str, hint: str) -> None:
    with pytest.raises(JobFileError) as caught:
        load(f'row_keys: [number], delete: "{text}"')
    [fault] = caught.value.faults
    assert (fault.line, fault.key, fault.message) == (5, "table.keyed.delete", message)
    assert fault.hint.startswith(hint)


def test_a_delete_may_read_a_column_that_only_spark_can_type(load: Load) -> None:
    further = 'sql: {select: [number, "upper(state) as op"]}'
    assert load("row_keys: [number], delete: op = 'D'", further).layout.delete is not None
    assert faults(load, "row_keys: [number], delete: opp = 'D'", further) == [
        ("table.keyed.delete", "the schema has no field opp")
    ]


@pytest.mark.parametrize(
    ("more", "key", "text"),
    [
        ("", "table.keyed.row_keys", "required"),
        ("row_keys: []", "table.keyed.row_keys", "no column"),
        ("row_keys: [numbr]", "table.keyed.row_keys[0]", "no column"),
        ("row_keys: [number, number]", "table.keyed.row_keys[1]", "twice"),
        ("row_keys: [share]", "table.keyed.row_keys[0]", "cannot be part of a key"),
        ("row_keys: [tags]", "table.keyed.row_keys[0]", "cannot be part of a key"),
        ("row_keys: ['hash(number, 4)']", "table.keyed.row_keys[0]", "no column"),
        ("row_keys: [number], partition_keys: ['day(at)']", "table.keyed.partition_keys[0]", "no column"),
        ("row_keys: [number], sequence: nothing", "table.keyed.sequence", "no column"),
        ("row_keys: [number], sequence: share", "table.keyed.sequence", "whole numbers"),
        ("row_keys: [number], buckets: 0", "table.keyed.buckets", "more than 0"),
        ("row_keys: [number], buckets: 5000", "table.keyed.buckets", "4096"),
        ("row_keys: [number], partial_updates: mrge", "table.keyed.partial_updates", "not one of"),
    ],
)
def test_a_fault_is_reported_with_its_location(load: Load, more: str, key: str, text: str) -> None:
    result = faults(load, more)
    assert [place for place, _ in result] == [key]
    assert text in result[0][1]


@pytest.mark.parametrize("name", ["_sequence", "_Bucket", "_DELETE", "_tiebreak", "_sequences"])
def test_reserved_columns_are_refused(load: Load, name: str) -> None:
    [(key, message)] = faults(load, "row_keys: [number]", f"columns: {{{name}: kafka.offset}}")
    assert key == "table.keyed" and name in message


def test_tombstones_delete_or_are_left_out(load: Load) -> None:
    assert not load("row_keys: [number]").filter_tombstones
    assert load("row_keys: [number]", "on: {tombstone: filter}").filter_tombstones
    for other in ("row", "quarantine"):
        [(key, _)] = faults(load, "row_keys: [number]", f"on: {{tombstone: {other}}}")
        assert key == "on.tombstone"


@pytest.mark.parametrize(
    ("drop", "further", "key", "text"),
    [
        ("[devise]", "", "drop[0]", "no field devise"),
        ("[number]", "", "table.keyed.row_keys[0]", "no column"),
        ("[state]", "sql: {where: number > 0}", "drop", "contradicts sql"),
        ("[device, at, number, share, tags, gone, state]", "", "drop", "no column"),
    ],
)
def test_dropped_fields_are_not_columns(load: Load, drop: str, further: str, key: str, text: str) -> None:
    result = faults(load, "row_keys: [number]", f"drop: {drop}\n{further}")
    assert (key, True) in [(place, text in message) for place, message in result]


def test_a_dropped_field_may_be_computed_from(load: Load) -> None:
    assert load("row_keys: [id]", "columns: {id: upper(device)}\ndrop: [device]").layout.row_keys == ("id",)
