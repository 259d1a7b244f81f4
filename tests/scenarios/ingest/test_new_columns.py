"""Fields that the table does not have: `on.new_column: add | quarantine | ignore`, from Kafka to the table."""

from __future__ import annotations

import json

import pytest
from deltalake import DeltaTable

from penstock.engine.replay import replay
from penstock.errors import UserError
from penstock.lake.state import Totals
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe

RED = '{"id": 2, "color": "red"}'


def names_of(pipe: Pipe) -> list[str]:
    return [field.name for field in DeltaTable(pipe.table).schema().fields]


def test_two_new_fields_in_different_partitions_are_both_added(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic(2)
    produce(name, ['{"id": 1, "size": 1.5}'], partition=0)
    produce(name, [RED, '{"id": 3, "place": {"city": "Bern", "tags": ["a"]}}'], partition=1)
    pipe.describe(name, on="new_column: add")
    pipe.run_to_end()
    assert pipe.rows("id", "size", "color", "place") == [
        (1, 1.5, None, None),
        (2, None, "red", None),
        (3, None, None, {"city": "Bern", "tags": ["a"]}),
    ]
    assert pipe.verified()


def test_whole_numbers_and_fractions_of_one_new_field_become_double(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic(2)
    produce(name, ['{"id": 1, "size": 2}'], partition=0)
    produce(name, ['{"id": 2, "size": 2.5}'], partition=1)
    pipe.describe(name, on="new_column: add")
    pipe.run_to_end()
    assert pipe.rows("id", "size") == [(1, 2.0), (2, 2.5)]


def test_types_of_a_new_field_that_do_not_fit_each_other_lose_no_record(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic(2)
    produce(name, ['{"id": 1, "size": 2}'], partition=0)
    produce(name, ['{"id": 2, "size": "large"}'], partition=1)
    pipe.describe(name, on="new_column: add")
    pipe.run_to_end()
    assert pipe.rows("id", "size") == [(2, "large")]
    assert pipe.quarantined() == [(0, 0)]
    assert pipe.totals() == Totals(read=2, written=1, quarantined=1)
    assert pipe.verified()


def test_a_field_with_an_invalid_column_name_is_reported_and_left_out(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, [json.dumps({"id": 1, "a b": 1, "ok": True, "empty": {}, "deep": {"x;": 1, "y": 2}})])
    pipe.describe(name, on="new_column: add")
    recorder = pipe.run_to_end()
    assert pipe.rows("id", "ok", "deep") == [(1, True, {"y": 2})]
    assert names_of(pipe) == ["id", "partition", "offset", "deep", "ok"]
    assert recorder.named("fields left out")[0]["fields"] == ["a b", "deep.x;"]


def test_one_unusual_record_does_not_decide_the_type_of_a_column_and_is_quarantined(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic(2)
    good = [json.dumps({"id": number, "battery": number}) for number in range(54)]
    produce(name, [json.dumps({"id": 99, "battery": "full"}), *good[:30]], partition=0)
    produce(name, good[30:], partition=1)
    pipe.describe(name, on="new_column: add")
    pipe.run_to_end()
    assert pipe.rows("id", "battery") == [(number, number) for number in range(54)]
    [(offset, error)] = pipe.quarantined("offset", "error")
    assert (offset, "battery" in error) == (0, True)
    assert pipe.verified()


def test_policy_quarantine_moves_records_with_new_fields_to_quarantine(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ['{"id": 1}', RED, '{"id": 3}'])
    pipe.describe(name, on="new_column: quarantine")
    pipe.run_to_end()
    assert pipe.column("id") == [1, 3]
    [(offset, error)] = pipe.quarantined("offset", "error")
    assert (offset, "color" in error) == (1, True)
    assert names_of(pipe) == ["id", "partition", "offset"]


def test_bad_record_fail_stops_the_job_at_the_first_new_field(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    pipe.describe(name, on="new_column: quarantine, bad_record: fail")
    produce(name, ['{"id": 1}'])
    pipe.run_to_end()
    produce(name, [RED])
    with pytest.raises(UserError) as raised:
        pipe.run_to_end(retries=3)
    assert "color" in str(raised.value) + raised.value.detail
    assert pipe.positions() == [1]
    assert pipe.column("id") == [1]


def test_ignore_drops_the_field_and_keeps_the_record(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ['{"id": 1}', RED])
    pipe.describe(name, on="new_column: ignore")
    pipe.run_to_end()
    assert pipe.column("id") == [1, 2]
    assert names_of(pipe) == ["id", "partition", "offset"]


def test_half_a_surrogate_in_the_name_of_a_new_field_is_quarantined(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ['{"id": 1, "\\ud800": 1, "ok": true, "deep": {"x\\udfff": 1, "y": 2}}'])
    pipe.describe(name, on="new_column: add")
    pipe.run_to_end()
    assert pipe.positions() == [1]
    assert pipe.column("id") == []
    assert pipe.verified()


MANY = [f'{{"id": {number}, "user": {{"name": "ann"}}}}' for number in range(1_999)]
TYPO = '{"id": 1999, "user": {"name": "bob", "nmae": "x"}, "colour": "red"}'


def test_a_field_of_few_records_becomes_no_column_and_waits_in_quarantine(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, [*MANY, TYPO])
    pipe.describe(name, schema="id: long, user: {name: string}", on="new_column: add")
    recorder = pipe.run_to_end()
    assert names_of(pipe) == ["id", "user", "partition", "offset"]
    assert pipe.quarantined() == [(0, 1_999)]
    assert recorder.named("fields left out")[0]["fields"] == ["colour", "user.nmae"]
    assert pipe.totals() == Totals(read=2_000, written=1_999, quarantined=1)
    assert pipe.verified()
    assert replay(pipe.job, spark=pipe.spark).replayed == 1
    assert pipe.rows("id", "colour")[-1] == (1_999, "red")
    assert pipe.verified()


def test_with_share_0_one_record_is_enough_and_frequent_fields_need_no_more(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, [*MANY, TYPO])
    pipe.describe(name, schema="id: long, user: {name: string}", on="new_column: add, new_column_share: 0")
    pipe.run_to_end()
    assert pipe.totals().quarantined == 0
    produce(name, [*(f'{{"id": {number}, "size": 1}}' for number in range(1_998)), '{"id": 1, "sise": 1}'] * 2)
    pipe.describe(name, schema="id: long, user: {name: string}", on="new_column: add, new_column_share: 0.01")
    pipe.run_to_end()
    assert {*names_of(pipe)} == {"id", "user", "partition", "offset", "colour", "size"}
    assert len(pipe.quarantined()) == 2
    assert pipe.verified()
