from __future__ import annotations

import gzip

import polars as pl
import pytest

from penstock.flow.points.decoder import POINTS_SCHEMA, PointsDecoder
from penstock.flow.points.metrics import PointCounts
from penstock.flow.points.series import BLACKLISTED, PAIR_BITS, SeriesBook
from penstock.flow.rows import in_parts
from penstock.job.spec import BlacklistEntry, DecodeSpec, PointsSpec, Policies
from tests.unit.flow.kafka_batches import kafka_batch
from tests.unit.flow.points.decoded import decode


def number(book: SeriesBook, metric: str, tags: str) -> int:
    return book.numbers([book.metric(metric) << PAIR_BITS | book.tag_set(tags)])[0]


def test_a_series_keeps_its_number() -> None:
    book = SeriesBook()
    asked = [("a", "{}"), ("a", '{"h":"1"}'), ("b", "{}"), ("a", "{}"), ("b", '{"h":"1"}'), ("a", '{"h":"1"}')]
    assert [number(book, *item) for item in asked] == [0, 1, 2, 0, 3, 1]
    frame = book.frame()
    assert frame.schema == {"series": pl.UInt32, "metric": pl.String, "tags": pl.String, "bucket": pl.Int16}
    assert frame.select("series", "metric", "tags").rows() == [
        (0, "a", "{}"),
        (1, "a", '{"h":"1"}'),
        (2, "b", "{}"),
        (3, "b", '{"h":"1"}'),
    ]


def test_without_series_the_frame_is_empty_and_has_its_columns() -> None:
    frame = SeriesBook().frame()
    assert frame.height == 0
    assert frame.schema == {"series": pl.UInt32, "metric": pl.String, "tags": pl.String, "bucket": pl.Int16}


def test_buckets_never_change() -> None:
    book = SeriesBook()
    number(book, "cpu.idle", '{"host":"a"}')
    number(book, "cpu.idle", '{"host":"b"}')
    number(book, "mem.füll", "{}")
    # By zlib: crc32 of the metric, exclusive or crc32 of the tags, the last 8 bits.
    assert book.frame()["bucket"].to_list() == [36, 125, 11]


def test_series_spread_evenly_over_buckets() -> None:
    book = SeriesBook()
    for host in range(2560):
        number(book, "cpu.idle", f'{{"host":"host-{host:05d}"}}')
    counts = book.frame()["bucket"].value_counts()
    assert counts.height > 250
    assert counts["count"].max() < 40  # type: ignore[operator]


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        (BlacklistEntry(r"^secret\."), ["cpu.a", "cpu.secret"]),
        (BlacklistEntry("secret"), ["cpu.a"]),
        (BlacklistEntry("", {"^env$": "^test"}), []),
        (BlacklistEntry("", {"nv": "es"}), []),
        (BlacklistEntry("", {"env": "^st"}), ["cpu.a", "cpu.secret", "secret.a"]),
        (BlacklistEntry("cpu", {"env": "test", "host": "h1"}), ["secret.a"]),
        (BlacklistEntry("cpu", {"env": "test", "rack": ""}), ["cpu.a", "cpu.secret", "secret.a"]),
    ],
)
def test_blacklisted_series_are_left_out_and_counted(entry: BlacklistEntry, kept: list[str]) -> None:
    tags = '"tags":{"env":"test 1","host":"h1"},"timestamp":1}'
    values = [
        f'{{"fields":{{"a":1,"secret":2}},"name":"cpu",{tags}'.encode(),
        f'{{"fields":{{"a":1}},"name":"secret",{tags}'.encode(),
    ]
    outcome = decode("telegraf", values, PointsSpec(blacklist=(entry,)))
    assert sorted(outcome.values) == kept
    assert outcome.counts == PointCounts(points=len(kept), blacklisted=3 - len(kept))
    assert outcome.filtered == 2 - len({row for row, *_ in outcome.points})


def test_blacklisted_series_have_no_number() -> None:
    book = SeriesBook([BlacklistEntry("^x$"), BlacklistEntry("^y$")])
    assert [number(book, name, "{}") for name in "axbyx"] == [0, BLACKLISTED, 1, BLACKLISTED, BLACKLISTED]
    assert book.frame()["metric"].to_list() == ["a", "b"]


def test_series_numbers_hold_from_batch_to_batch() -> None:
    decoder = PointsDecoder(DecodeSpec("influx"), Policies())
    first = decoder.decode(kafka_batch([b"m,h=1 a=1,b=2 1", b"m,h=2 a=3 1"]))
    second = decoder.decode(kafka_batch([b"m,h=2 a=3 1", b'm,h=1 s="x",b=4 1', b"n a=1 1"]))
    assert first.points.schema == second.points.schema == POINTS_SCHEMA
    assert sorted(first.points.select("row", "series").rows()) == [(0, 0), (0, 1), (1, 2)]
    assert sorted(second.points.select("row", "series").rows()) == [(0, 2), (1, 1), (2, 3)]
    assert decoder.series.frame()["metric"].to_list() == ["m.a", "m.b", "m.a", "n.a"]


def test_an_empty_batch_has_no_points() -> None:
    decoded = PointsDecoder(DecodeSpec("telegraf"), Policies()).decode(kafka_batch([]))
    assert (decoded.points.height, decoded.filtered) == (0, 0)
    assert decoded.points.schema == POINTS_SCHEMA


def test_counts_add_up() -> None:
    assert PointCounts(1, 2, 3, 4) + PointCounts(10, 20, 30, 40) == PointCounts(11, 22, 33, 44)


def test_a_batch_that_unpacks_to_too_much_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.flow.decode.outcome.PART_BYTES_MAX", 20)
    decoder = PointsDecoder(DecodeSpec("influx", "gzip"), Policies())
    batch = kafka_batch([gzip.compress(f"m f={number} 1".encode()) for number in range(7)])
    parts = list(in_parts(decoder.decode, batch))
    assert [part.points["value"].to_list() for part in parts] == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0]]
    assert [part.points["row"].to_list() for part in parts] == [[0, 1, 2], [0, 1, 2], [0]]
