"""The metrics of a sample are what Telegraf would write, as many as requested, and the same every time."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import groupby

from penstock.embedded.sample import MetricSample, end_markers, metric_records
from tests.support.metric_windows import SECONDS, Aggregate, Window, expected_windows


def values(sample: MetricSample) -> list[bytes]:
    return [value for _, value in metric_records(sample)]


def test_a_sample_has_the_stated_number_of_series_and_points() -> None:
    sample = MetricSample(25, hosts=10)
    records = [json.loads(value) for value in values(sample)]
    series = {(record["tags"]["host"], field) for record in records for field in record["fields"]}
    assert (len(records), len(series), sample.series) == (25, 30, 30)
    assert sample.points == sum(len(record["fields"]) for record in records)


def test_a_record_is_compact_and_its_keys_are_sorted() -> None:
    for text in values(MetricSample(100, hosts=7)):
        record = json.loads(text)
        assert json.dumps(record, sort_keys=True, separators=(",", ":")).encode() == text
        assert list(record) == ["fields", "name", "tags", "timestamp"]


def test_the_key_is_the_host() -> None:
    for key, text in metric_records(MetricSample(10, hosts=3)):
        assert json.loads(text)["tags"]["host"] == key.decode()


def test_hosts_report_in_turn_and_time_advances_with_each_turn() -> None:
    sample = MetricSample(7, hosts=3, start=1_000)
    times = [json.loads(text)["timestamp"] for text in values(sample)]
    assert [(at, len(list(same))) for at, same in groupby(times)] == [(1_000, 3), (1_010, 3), (1_020, 1)]


def test_values_are_exact_in_binary() -> None:
    for text in values(MetricSample(500, hosts=10)):
        for value in json.loads(text, parse_float=Fraction)["fields"].values():
            assert (value * 64).denominator == 1
            assert 0 <= value < 100


def test_equal_seeds_give_equal_records_and_other_seeds_others() -> None:
    sample = MetricSample(50, hosts=10)
    assert values(sample) == values(sample)
    assert values(sample) != values(MetricSample(50, hosts=10, seed=1))


def test_end_markers_are_later_than_any_window_of_the_sample_and_its_lateness() -> None:
    sample = MetricSample(50, hosts=10)
    longest_seconds = max(SECONDS.values())
    last_end = (sample.at(49) // longest_seconds + 1) * longest_seconds
    markers = [json.loads(text) for text in end_markers(sample, 4)]
    assert len(markers) == 4
    assert all(marker["timestamp"] > last_end + 3600 for marker in markers)


def test_expected_windows_match_a_case_computed_by_hand() -> None:
    lines = [
        b'{"fields":{"a":1.5,"b":7},"name":"cpu","tags":{"host":"x"},"timestamp":119}',
        b'{"fields":{"a":-0.5},"name":"cpu","tags":{"host":"x"},"timestamp":60}',
        b'{"fields":{"a":4},"name":"cpu","tags":{"host":"x"},"timestamp":120}',
    ]
    tags = (("host", "x"),)
    assert expected_windows(lines, {"1m": 60, "10m": 600}) == {
        Window("cpu.a", tags, "1m", 60): Aggregate(2, 1.0, -0.5, 1.5),
        Window("cpu.a", tags, "1m", 120): Aggregate(1, 4.0, 4.0, 4.0),
        Window("cpu.a", tags, "10m", 0): Aggregate(3, 5.0, -0.5, 4.0),
        Window("cpu.b", tags, "1m", 60): Aggregate(1, 7.0, 7.0, 7.0),
        Window("cpu.b", tags, "10m", 0): Aggregate(1, 7.0, 7.0, 7.0),
    }
