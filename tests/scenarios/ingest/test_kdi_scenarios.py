"""The scenarios of kafka-delta-ingest's own tests, each with the outcome that its users were promised."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime

from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from penstock.engine.round import BatchLanded, Waiting
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Clock, Pipe, ids, once_at


def test_a_position_of_zero_is_a_position(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    pipe.describe(name)
    pipe.run_to_end()
    assert pipe.positions() == [0]
    produce(name, ids(range(1)))
    pipe.run_to_end()
    produce(name, ids(range(1, 3)))
    pipe.run_to_end()
    assert pipe.column("id") == [0, 1, 2]
    assert pipe.positions() == [3]


def test_an_explicit_start_is_the_first_offset_that_is_read(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(1, 11)))
    pipe.describe(name, kafka="start: {0: 4}")
    pipe.run_to_end()
    produce(name, ids(range(11, 16)))
    pipe.run_to_end()
    assert pipe.column("id") == list(range(5, 16))
    assert pipe.verified()


def test_the_tables_position_wins_over_an_explicit_start(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(10)))
    pipe.describe(name, kafka="start: {0: 4}")
    pipe.run_to_end()
    version = pipe.version()
    for elsewhere in ("start: {0: 2}", "start: {0: 9}", "start: earliest"):
        pipe.describe(name, kafka=elsewhere)
        pipe.run_to_end()
    assert pipe.version() == version
    assert pipe.column("id") == list(range(4, 10))


def test_a_bounded_run_takes_exactly_what_was_there_and_ends_by_itself(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    """Also with a latency and a size that nothing could ever reach (limitation L3)."""
    name = topic(3)
    for number in range(3):
        produce(name, ids(range(number * 5, number * 5 + 5)), partition=number)
    pipe.describe(name, flush="allowed_latency: 5h, min_bytes_per_file: 1GiB")

    def more() -> None:
        for number in range(3):
            produce(name, ids(range(100, 105)), partition=number)

    recorder = pipe.run_to_end(once_at("planned", more))
    assert pipe.column("id") == list(range(15))
    assert [item["read"] for item in recorder.named("batch committed")] == [15]
    assert pipe.positions() == [5, 5, 5]


def test_records_wait_for_the_latency_and_no_longer(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name, clock = topic(), Clock()
    pipe.describe(name, flush="allowed_latency: 5s")
    with pipe.opened(clock=clock) as pipeline:
        assert pipeline.round().done
        for numbers in (range(10), range(10, 20)):
            produce(name, ids(numbers))
            seen_at = clock.seconds
            assert pipeline.round() == Waiting(seen_at + 5)
            clock.seconds = seen_at + 4.9
            assert pipeline.round() == Waiting(seen_at + 5)
            clock.seconds = seen_at + 5
            assert isinstance(pipeline.round(), BatchLanded)
            assert pipe.column("id") == list(range(numbers.stop))


def test_an_idle_topic_makes_no_commits(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name, clock = topic(), Clock()
    produce(name, ids(range(10)))
    pipe.describe(name, flush="allowed_latency: 5s")
    with pipe.opened(clock=clock) as pipeline:
        pipeline.round()
        version = pipe.version()
        for _ in range(3):
            clock.seconds += 60
            assert pipeline.round().done
            assert pipeline.round(flush_now=True).done
    assert pipe.version() == version


def test_enough_records_for_a_file_do_not_wait_for_the_latency(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name, clock = topic(), Clock()
    pipe.describe(name, flush="allowed_latency: 1h, min_bytes_per_file: 20B, max_messages_per_batch: 10")
    with pipe.opened(clock=clock) as pipeline:
        assert pipeline.round().done
        produce(name, ids(range(9)))
        assert pipeline.round() == Waiting(clock.seconds + 3600)
        produce(name, ids(range(9, 10)))
        assert isinstance(pipeline.round(), BatchLanded)
    assert pipe.column("id") == list(range(10))


def test_plain_json_is_read_by_its_types(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    record = {"id": 7, "name": "Ada", "date": "2021-03-24", "at": "2021-03-24T16:06:17+01:00", "tags": ["a", None]}
    produce(name, [json.dumps(record)])
    pipe.describe(name, schema="id: long, name: string, date: date, at: timestamp, tags: [string]")
    pipe.run_to_end()
    instant = datetime(2021, 3, 24, 15, 6, 17, tzinfo=UTC)
    assert pipe.rows("id", "name", "date", "at", "tags") == [(7, "Ada", date(2021, 3, 24), instant, ["a", None])]


def test_nine_notations_of_an_instant_are_equal_and_invalid_ones_are_quarantined(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    spellings = [
        "2021-03-24T15:06:17.321710Z",
        "2021-03-24T15:06:17.321710+00:00",
        "2021-03-24T16:06:17.321710+01:00",
        "2021-03-24T07:36:17.321710-07:30",
        "2021-03-24 15:06:17.321710",
        "2021-03-24 15:06:17.321710Z",
        "2021-03-24T15:06:17.32171Z",
        "2021-03-24T15:06:17.321710",
        "2021-03-24T15:06:17.321710999Z",
    ]
    produce(name, [json.dumps({"at": item}) for item in [*spellings, "soon", "2400-02-29T00:00:00Z"]])
    pipe.describe(name, schema="at: timestamp")
    pipe.run_to_end()
    instant = datetime(2021, 3, 24, 15, 6, 17, 321710, tzinfo=UTC)
    assert pipe.column("at") == [instant] * 9 + [datetime(2400, 2, 29, tzinfo=UTC)]
    assert pipe.quarantined() == [(0, 9)]


def test_a_column_added_between_write_and_commit_costs_no_record(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(5)))
    pipe.describe(name)

    def add() -> None:
        DeltaTable(pipe.table).alter.add_columns(Schema([Field("color", PrimitiveType("string"))]).fields)

    pipe.run_to_end(once_at("staged", add), retries=1)
    assert pipe.rows("id", "color") == [(number, None) for number in range(5)]


def test_bad_records_among_good_ones_are_kept_with_bytes_and_reason(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ids(range(4)))
    bad: list[bytes] = [b'{"id": {"no": "number"}}', b'{"id": [1]}', b"\xff\xfe no json"]
    produce(name, bad, key="k", headers=[("trace", b"7")])
    produce(name, ids(range(4, 10)))
    pipe.describe(name)
    recorder = pipe.run_to_end()
    assert pipe.column("id") == list(range(10))
    assert pipe.quarantined("offset", "value", "key") == [(4 + n, value, b"k") for n, value in enumerate(bad)]
    errors = [error for (error,) in pipe.quarantined("error")]
    assert errors[0].startswith("id: expected long") and errors[1].startswith("id: expected long")
    assert [headers for (headers,) in pipe.quarantined("headers")] == [[{"key": "trace", "value": b"7"}]] * 3
    [event] = recorder.named("batch committed")
    assert (event["read"], event["written"], event["quarantined"]) == (13, 10, 3)
    assert pipe.verified()
