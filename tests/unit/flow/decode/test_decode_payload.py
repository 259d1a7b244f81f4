"""Wrapped payloads, and the decoder that takes them as they are."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Literal

import pyarrow as pa
import pytest

from penstock.errors import UserError
from penstock.flow.decode.decoder import Decoder, decoder_for
from penstock.flow.rows import Decoded, in_parts
from penstock.job.spec import DecodeSpec, Payload, Policies, TombstonePolicy
from tests.support.garmadon_descriptors import HEADER, garmadon_descriptors, named
from tests.unit.flow.kafka_batches import bad_offsets, decode_json, good_offsets, kafka_batch

Wrap = Callable[[bytes], bytes]
Form = Literal["json", "raw", "protobuf", "garmadon"]

SCHEMA = pa.schema([("id", pa.int64())])
RAW = pa.schema([("value", pa.binary())])


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=1)


def wrapped_decoder(form: Form) -> Decoder:
    if form == "json":
        return decoder_for(DecodeSpec(form, "gzip"), SCHEMA, Policies())
    if form == "raw":
        return decoder_for(DecodeSpec(form, "gzip"), RAW, Policies())
    # These cannot read the records; what matters is that all of them are looked at, a part at a time.
    spec = DecodeSpec(form, "gzip", garmadon_descriptors(), named("StateEvent"), HEADER)
    return decoder_for(spec, pa.schema([("state", pa.string())]), Policies())


def decode_raw(values: list[bytes | None], wrapping: Payload, tombstone: TombstonePolicy) -> Decoded:
    decoder = decoder_for(DecodeSpec("raw", wrapping), RAW, Policies(tombstone=tombstone))
    return decoder.decode(kafka_batch(values))


@pytest.mark.parametrize(("wrapping", "wrap"), [("gzip", gzipped)])
def test_compressed_records_are_rows_and_uncompressed_ones_are_bad(wrapping: Payload, wrap: Wrap) -> None:
    good = wrap(b'{"id":1}')
    values = [good, b'{"id":2}', None, good[:-4], b"", wrap(b""), wrap(b'{"id":'), wrap(b'{"i') + wrap(b'd":3}')]
    decoded = decode_json(SCHEMA, values, payload=wrapping)
    assert decoded.rows.columns.column("id").to_pylist() == [1, 3]
    assert decoded.filtered == 1
    errors = dict(zip(bad_offsets(decoded), decoded.bad.errors.to_pylist(), strict=True))
    assert {offset: text.split(":")[0] for offset, text in errors.items()} == {
        101: f"payload is not {wrapping}",
        103: f"payload is not {wrapping}",
        104: f"payload is not {wrapping}",
        105: "value is empty",
        106: "not JSON",
    }
    assert decoded.bad.kafka.column("value")[0].as_py() == b'{"id":2}'


@pytest.mark.parametrize(("wrapping", "wrap"), [("gzip", gzipped)])
def test_a_small_record_that_grows_without_end_is_bad_and_names_the_limit(
    wrapping: Payload, wrap: Wrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.flow.decode.outcome.PAYLOAD_BYTES_MAX", 100_000)
    small, bomb = wrap(b'{"id":1}'), wrap(b" " * 100_001)
    decoder = decoder_for(DecodeSpec("json", wrapping), SCHEMA, Policies())
    decoded = decoder.decode(kafka_batch([small, bomb, wrap(b"{}" + b" " * 99_998)]))
    assert good_offsets(decoded) == [100, 102]
    assert decoded.bad.errors.to_pylist() == ["payload unpacks to more than 100000 bytes"]
    assert decoded.bad.kafka.column("value").to_pylist() == [bomb]


@pytest.mark.parametrize("form", ["json", "raw", "protobuf", "garmadon"])
def test_a_batch_that_is_large_unpacked_is_decoded_in_parts(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five records of 10,000 bytes and a bound of 15,000: two at a time, whatever stands between them."""
    monkeypatch.setattr("penstock.flow.decode.outcome.PART_BYTES_MAX", 15_000)
    large = gzipped(b'{"id":7}' + b" " * 9_992)
    values = [large, None, large, b"not gzip", large, large, None, large]
    decoder = wrapped_decoder(form)
    parts = list(in_parts(decoder.decode, kafka_batch(values)))
    assert [(part.rows.kafka.num_rows + len(part.bad.errors), part.filtered) for part in parts] == [
        (2, 1),
        (3, 0),
        (1, 1),
    ]
    offsets = [offset for part in parts for offset in sorted(good_offsets(part) + bad_offsets(part))]
    assert offsets == [100, 102, 103, 104, 105, 107]
    if form in ("json", "raw"):
        assert [offset for part in parts for offset in bad_offsets(part)] == [103]


def test_a_tombstone_among_compressed_records_can_be_a_row() -> None:
    values = [None, gzip.compress(b'{"id":1}')]
    decoded = decode_json(SCHEMA, values, payload="gzip", tombstone="row")
    assert decoded.rows.columns.column("id").to_pylist() == [None, 1]


def test_raw_records_are_their_bytes_even_without_any() -> None:
    batch = kafka_batch([b"\xff\x00", b""])
    decoded = decoder_for(DecodeSpec("raw"), RAW, Policies()).decode(batch)
    assert decoded.rows.kafka is batch
    assert decoded.rows.columns.column("value").to_pylist() == [b"\xff\x00", b""]


def test_raw_records_are_unwrapped() -> None:
    decoded = decode_raw([gzipped(b"abc"), b"abc"], "gzip", "filter")
    assert decoded.rows.columns.column("value").to_pylist() == [b"abc"]
    assert bad_offsets(decoded) == [101]


def test_raw_tombstones_follow_their_policy() -> None:
    filtered = decode_raw([b"a", None], "plain", "filter")
    assert (filtered.rows.columns.column("value").to_pylist(), filtered.filtered) == ([b"a"], 1)
    rows = decode_raw([b"a", None], "plain", "row")
    assert rows.rows.columns.column("value").to_pylist() == [b"a", None]
    quarantined = decode_raw([b"a", None], "plain", "quarantine")
    assert quarantined.bad.errors.to_pylist() == ["value is null (a tombstone)"]


def test_raw_records_take_no_other_schema() -> None:
    with pytest.raises(UserError):
        decoder_for(DecodeSpec("raw"), SCHEMA, Policies())
