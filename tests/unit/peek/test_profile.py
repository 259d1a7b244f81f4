"""A profile of records that are made by hand: rates, fields, and candidates for event time, key and type."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from penstock.errors import UserError
from penstock.job.schema import job_type_name
from penstock.logs.log import Bounds, Partition
from penstock.peek.candidates import event_times, keys, types
from penstock.peek.profile import Profile, percent
from penstock.peek.sample import Record, Sample, parse_start

AT_MS = 1_772_359_200_000
"""2026-03-01T10:00:00Z."""


def profile_of(values: Sequence[Any], keys: Sequence[bytes | None] = (), headers: Sequence[str] = ()) -> Profile:
    """A record per second."""
    records = tuple(
        Record(
            0,
            number,
            AT_MS + 1000 * number,
            keys[number] if keys else None,
            value if isinstance(value, bytes) else json.dumps(value).encode(),
            (("kind", headers[number].encode()),) if headers else (),
        )
        for number, value in enumerate(values)
    )
    return Profile(Sample("t", {Partition("t", "id", 0): Bounds(0, len(records))}, records))


def types_of(profile: Profile) -> dict[str, str]:
    return {field.name: job_type_name(field.type) for field in profile.schema}


def test_rates_follow_from_offsets_and_times() -> None:
    profile = profile_of([b"0123456789"] * 11)
    assert profile.records_per_second == 1
    assert profile.bytes_per_second == 10
    assert profile.times_ms == (AT_MS, AT_MS + 10_000)


def test_texts_that_are_all_times_dates_or_decimals_get_these_types() -> None:
    values = [
        {"at": "2026-03-01T10:00:00Z", "day": "2026-03-01", "price": "12.50", "zip": "01234", "count": 1, "share": 1},
        {"at": "2026-03-01 10:00:00.5", "day": "2026-03-02", "price": "3", "zip": "99999", "count": 2, "share": 0.5},
    ]
    assert types_of(profile_of(values)) == {
        "at": "timestamp",
        "day": "date",
        "price": "decimal(18,2)",
        "zip": "string",
        "count": "long",
        "share": "double",
    }


def test_nested_fields_are_profiled_by_path() -> None:
    values = [{"items": [{"sku": "a", "n": 1}, {"sku": "b"}], "meta": {"at": "2026-03-01"}}, {"items": []}]
    profile = profile_of(values)
    present = {field.name: field.present for field in profile.fields.values()}
    assert present == {"items": 2, "items[]": 1, "items[].sku": 1, "items[].n": 1, "meta": 1, "meta.at": 1}
    assert types_of(profile) == {"items": "list<{sku: string, n: long}>", "meta": "{at: date}"}


def test_field_of_several_kinds_shows_their_counts() -> None:
    [field] = profile_of([{"n": 1}, {"n": 2}, {"n": "x"}, {"n": None}]).fields.values()
    assert field.kinds == {"number": 2, "text": 1}
    assert (field.range, field.present) == ((1, 2), 3)


def test_object_with_many_rare_members_is_a_map() -> None:
    assert types_of(profile_of([{"tags": {f"k{n}": "v"}} for n in range(60)])) == {"tags": "map<string,string>"}


@pytest.mark.parametrize(
    ("time", "expression"),
    [
        ("2026-03-01T10:00:00Z", "at"),
        (AT_MS // 1000, "timestamp_seconds(at)"),
        (AT_MS, "timestamp_millis(at)"),
        (AT_MS * 1000, "timestamp_micros(at)"),
    ],
)
def test_event_time_is_a_field_with_times_of_any_unit(time: object, expression: str) -> None:
    assert [item.text for item in event_times(profile_of([{"n": 1, "at": time}] * 5))] == [expression]


def test_event_time_is_named_like_one_and_close_to_the_kafka_timestamp() -> None:
    value = {
        "born": "1990-01-01T00:00:00Z",
        "delivered_at": "2026-03-09T00:00:00Z",
        "ordered_at": "2026-03-01T10:00:01Z",
    }
    names = [item.text for item in event_times(profile_of([value] * 3))]
    assert names == ["ordered_at", "delivered_at", "born"]


def test_key_is_the_field_that_equals_the_kafka_key() -> None:
    values = [{"id": number, "customer": f"c-{number}"} for number in range(20)]
    profile = profile_of(values, [f"c-{number}".encode() for number in range(20)])
    assert [item.text for item in keys(profile)] == ["customer", "kafka.key", "id"]


def test_type_is_the_field_that_decides_which_others_there_are() -> None:
    values = [{"type": "click", "method": "GET", "url": "/"}, {"type": "order", "method": "GET", "price": 1}] * 5
    [candidate] = types(profile_of(values))
    assert candidate.by == "field(type)"
    assert candidate.values == {"click": 5, "order": 5}


def test_type_may_be_a_header() -> None:
    values = [{"url": "/"}, {"price": 1}] * 5
    [candidate] = types(profile_of(values, headers=["click", "order"] * 5))
    assert candidate.by == "header(kind)"


def test_field_that_decides_nothing_is_no_type() -> None:
    assert not types(profile_of([{"type": "a", "n": 1}, {"type": "b", "n": 2}] * 5))


def test_start_is_a_name_an_offset_or_a_time() -> None:
    assert parse_start("latest") == "latest"
    assert parse_start("17") == 17
    assert parse_start("2026-03-01T10:00:00Z") == datetime.fromisoformat("2026-03-01T10:00:00Z")
    ago = parse_start("2h")
    assert isinstance(ago, datetime)
    assert 7_199 <= (datetime.now(ago.tzinfo) - ago).total_seconds() <= 7_260
    with pytest.raises(UserError, match="invalid start tomorrow"):
        parse_start("tomorrow")


def test_percent_is_0_or_100_only_if_it_is_none_or_all() -> None:
    assert [percent(share) for share in (0, 0.00001, 0.5, 0.99999, 1)] == ["0 %", "0.1 %", "50 %", "99.9 %", "100 %"]
