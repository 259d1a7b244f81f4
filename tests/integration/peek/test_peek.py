"""`penstock peek` on a real Kafka."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.embedded.sample import SampleSize, produce_values, web_requests
from penstock.job.spec import KafkaLogSpec
from penstock.peek.sample import TopicReader
from tests.support.kafka import Produce, Topics

AT_MS = 1_772_359_200_000


def peeked(bootstrap: str, *arguments: str) -> Any:
    result = CliRunner().invoke(app, ["peek", *arguments, "--bootstrap", bootstrap, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def offsets(bootstrap: str, *arguments: str) -> list[int]:
    return [record["offset"] for record in peeked(bootstrap, *arguments, "--follow")]


def test_sample_is_spread_over_partitions_and_times(bootstrap: str, topic: Topics) -> None:
    name = topic(partitions=3)
    produce_values(bootstrap, name, (str(number).encode() for number in range(30_000)), 3)
    with TopicReader(KafkaLogSpec(bootstrap, topics=(name,))) as reader:
        sample = reader.sample(None, 300)
    assert len(sample.records) == 300
    assert sample.offsets == 30_000
    for partition in range(3):
        places = [record.offset for record in sample.records if record.partition == partition]
        assert len(places) == 100
        assert places[0] == 0 and places[-1] == 9_999
        # Ten stretches, so that no two neighbours are further apart than a tenth and a bit.
        assert max(after - before for before, after in pairwise(places)) < 1_200


def test_small_topic_is_read_as_a_whole(bootstrap: str, topic: Topics, produce: Produce) -> None:
    name = topic(partitions=2)
    produce(name, ["a", None, "{}"], key=b"k", headers=[("kind", b"x")], timestamp_ms=AT_MS)
    [profile] = peeked(bootstrap, name)
    assert profile["sampled"] == profile["offsets"] == 3
    assert profile["formats"] == {"text": 1, "tombstone": 1, "JSON": 1}
    assert profile["keys"] == {"present": 3, "examples": ["k"]}
    assert profile["headers"] == {"kind": {"present": 3, "examples": ["x"]}}
    assert profile["timestamps_ms"] == [AT_MS, AT_MS]


def test_a_filter_leaves_records_for_which_it_is_true(bootstrap: str, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, [f'{{"status": {status}}}' for status in (200, 500, 404, 503)])
    assert offsets(bootstrap, name, "-o", "earliest", "-n", "2", "--filter", "status >= 500") == [1, 3]
    [profile] = peeked(bootstrap, name, "--filter", "status >= 500")
    assert (profile["sampled"], profile["offsets"]) == (2, 4)
    refused = CliRunner().invoke(app, ["peek", name, "--filter", "status >", "--bootstrap", bootstrap])
    assert "--filter" in str(refused.exception)


def test_start_is_earliest_latest_an_offset_or_a_time(bootstrap: str, topic: Topics, produce: Produce) -> None:
    name = topic()
    for number in range(10):
        produce(name, [str(number)], timestamp_ms=AT_MS + 60_000 * number)
    assert offsets(bootstrap, name, "-o", "earliest", "-n", "2") == [0, 1]
    assert offsets(bootstrap, name, "-o", "7", "-n", "2") == [7, 8]
    assert offsets(bootstrap, name, "-o", "2026-03-01T10:04:30Z", "-n", "2") == [5, 6]
    with TopicReader(KafkaLogSpec(bootstrap, topics=(name,))) as reader:
        assert [record.offset for record in reader.sample("latest", 3).records] == [7, 8, 9]
        assert [record.offset for record in reader.sample(8, 5).records] == [8, 9]


def test_records_of_aborted_transactions_are_not_waited_for(bootstrap: str, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ["a"], transactional=True)
    produce(name, ["b", "c"], transactional=True, aborted=True)
    with TopicReader(KafkaLogSpec(bootstrap, topics=(name,))) as reader:
        assert [record.value for record in reader.sample(None, 100).records] == [b"a"]


def test_empty_topic_has_a_profile(bootstrap: str, topic: Topics) -> None:
    [profile] = peeked(bootstrap, topic(partitions=2))
    assert profile["sampled"] == 0 and profile["formats"] == {} and profile["fields"] == []


def test_of_many_records_a_thousand_are_read(bootstrap: str, topic: Topics) -> None:
    name = topic(partitions=4)
    produce_values(bootstrap, name, web_requests(SampleSize(100_000)), 4)
    [profile] = peeked(bootstrap, name)
    assert profile["sampled"] == 1_000 and profile["offsets"] == 100_000
    assert profile["event_time"][0]["expression"] == "meta.producer.timestamp"


def test_screen_has_80_columns(
    bootstrap: str, topic: Topics, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    produce(name, [json.dumps({"order": f"o-{number}", "price": 1.5, "at": AT_MS}) for number in range(5)] + [b"\xff"])
    monkeypatch.setattr("penstock.cli.peek.WIDTH_IN_FILES", 80)
    result = CliRunner().invoke(app, ["peek", name, "--bootstrap", bootstrap], catch_exceptions=False)
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"{name}  1 partition  6 offsets, 6 records read"
    assert "format  JSON 83.3 %" in lines
    assert "format  binary 16.7 %  such as ff" in lines
    assert "price  100 %  double  1.5 to 1.5" in lines
    assert any(line.startswith("event time  timestamp_millis(at): in 100 % of records, about ") for line in lines)


def test_mistakes_are_named(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_BROKERS", raising=False)
    runner = CliRunner()
    assert "no broker is named" in str(runner.invoke(app, ["peek", "t"]).exception)
    assert "expected host:port" in str(runner.invoke(app, ["peek", "t", "--bootstrap", "kafka"]).exception)
    absent = runner.invoke(app, ["peek", "no-such-topic", "--bootstrap", bootstrap])
    assert "topic no-such-topic does not exist" in str(absent.exception)
    owned = runner.invoke(app, ["peek", "t", "--bootstrap", bootstrap, "-X", "group.id=g"])
    assert "client settings that Penstock decides itself: group.id" in str(owned.exception)
