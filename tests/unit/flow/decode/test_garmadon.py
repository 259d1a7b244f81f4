"""Garmadon events: the flat rows of its own exporter, to the value, and bad events named."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UserError
from penstock.flow.decode.decoder import decoder_for
from penstock.flow.decode.garmadon.envelope import markers
from penstock.flow.decode.garmadon.events import uniform_uri
from penstock.flow.rows import Decoded
from penstock.job.messages import garmadon_schema
from penstock.job.spec import DecodeSpec, MessageName, Policies, TombstonePolicy
from tests.support.garmadon_descriptors import BODIES, HEADER, event, garmadon_descriptors, named, serialised
from tests.unit.flow.kafka_batches import bad_offsets, good_offsets, kafka_batch

DESCRIPTORS = garmadon_descriptors()
STATE = named("StateEvent")
FS, GC, JVM = BODIES[1], BODIES[1000], BODIES[1001]
VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "golden" / "garmadon-vectors.json").read_text(encoding="utf-8")
)
GOOD = [vector for vector in VECTORS if "row" in vector]
OTHERS = {vector["name"]: vector["value_hex"] and bytes.fromhex(vector["value_hex"]) for vector in VECTORS[len(GOOD) :]}


def decode(
    values: list[bytes | None],
    body: MessageName,
    *,
    defaults: Literal["null", "value"] = "null",
    uri_names: dict[str, str] | None = None,
    tombstone: TombstonePolicy = "filter",
    names: list[str] | None = None,
) -> Decoded:
    schema = garmadon_schema(DESCRIPTORS, HEADER, body)
    if names is not None:
        schema = pa.schema([schema.field(name) for name in names])
    spec = DecodeSpec("garmadon", descriptors=DESCRIPTORS, header=HEADER, defaults=defaults, uri_names=uri_names or {})
    decoder = pickle.loads(pickle.dumps(decoder_for(spec, schema, Policies(tombstone=tombstone), body)))
    decoded: Decoded = decoder.decode(kafka_batch(values))
    assert decoded.rows.columns.schema.equals(schema)
    decoded.rows.columns.validate(full=True)
    assert not set(good_offsets(decoded)) & set(bad_offsets(decoded))
    assert len(good_offsets(decoded)) + len(bad_offsets(decoded)) + decoded.filtered == len(values)
    return decoded


def one(body: MessageName, defaults: Literal["null", "value"] = "null", **fields: Any) -> dict[str, Any]:
    value = event(1, 7, serialised(DESCRIPTORS, HEADER, hostname="h"), serialised(DESCRIPTORS, body, **fields))
    rows: list[dict[str, Any]] = decode([value], body, defaults=defaults).rows.columns.to_pylist()
    return rows[0]


def access(
    uri: str, source: str, target: str, defaults: Literal["null", "value"] = "null"
) -> tuple[str | None, str | None, str | None]:
    result = one(FS, defaults, uri=uri, src_path=source, dst_path=target)
    return result["uri"], result["src_path"], result["dst_path"]


def heap(**values: str) -> dict[str, Any]:
    return {"name": "heap", "property": [{"name": name, "value": value} for name, value in values.items()]}


def heap_row(*sections: dict[str, Any], defaults: Literal["null", "value"] = "null") -> list[int | None]:
    result = one(JVM, defaults, section=list(sections))
    return [result[name] for name in ("init", "committed", "used", "max")]


def test_the_vectors_are_those_that_garmadon_made() -> None:
    assert (len(GOOD), len(OTHERS)) == (11, 6)


@pytest.mark.parametrize("vector", GOOD, ids=[vector["name"] for vector in GOOD])
def test_an_event_becomes_the_row_that_garmadon_writes(vector: dict[str, Any]) -> None:
    decoded = decode([bytes.fromhex(vector["value_hex"])], BODIES[vector["type_marker"]])
    # The offset is a column of every table, not of the decoder.
    expected = {name: value for name, value in vector["row"].items() if name != "kafka_offset"}
    [row] = decoded.rows.columns.to_pylist()
    shown = {name: "-Infinity" if value == float("-inf") else value for name, value in row.items()}
    assert list(shown.items()) == list(expected.items())
    assert row["timestamp"] == vector["timestamp"]


def test_markers_of_the_vectors_name_their_types_and_broken_envelopes_have_none() -> None:
    values = [bytes.fromhex(vector["value_hex"]) for vector in GOOD] + list(OTHERS.values())
    result = markers(pa.array(values, pa.binary())).to_pylist()
    assert result[: len(GOOD)] == [str(vector["type_marker"]) for vector in GOOD]
    assert dict(zip(OTHERS, result[len(GOOD) :], strict=True)) == {
        "state_event_type3_no_writer": "3",
        "short_value": None,
        "length_mismatch": None,
        "header_not_protobuf": "3",
        "unknown_type_marker_2": "2",
        "null_value_tombstone": None,
    }
    assert 2 not in BODIES


def test_bad_vectors_are_named_and_the_good_ones_between_them_are_rows() -> None:
    good = OTHERS["state_event_type3_no_writer"]
    names = ["short_value", "length_mismatch", "header_not_protobuf", "null_value_tombstone"]
    values = [good, *(part for name in names for part in (OTHERS[name], good))]
    decoded = decode(values, STATE, tombstone="quarantine")
    assert good_offsets(decoded) == [100, 102, 104, 106, 108]
    assert decoded.rows.columns.column("state").to_pylist() == ["END"] * 5
    assert decoded.bad.errors.to_pylist() == [
        "envelope is broken: 7 bytes, its frame alone has 20",
        "envelope is broken: 180 bytes, its frame announces 181",
        "header is not a message com.criteo.hadoop.garmadon.Header",
        "value is null (a tombstone)",
    ]


def test_a_body_that_is_not_its_message_is_bad_and_a_bad_header_is_named_first() -> None:
    good, bad = serialised(DESCRIPTORS, HEADER, hostname="h"), b"\xff"
    values: list[bytes | None] = [event(3, 1, good, bad), event(3, 2, good, b""), event(3, 3, bad, bad)]
    decoded = decode(values, STATE)
    assert decoded.rows.columns.column("timestamp").to_pylist() == [2]
    assert decoded.bad.errors.to_pylist() == [
        "body is not a message com.criteo.hadoop.garmadon.StateEvent",
        "header is not a message com.criteo.hadoop.garmadon.Header",
    ]


def test_each_event_has_its_own_header() -> None:
    headers = [serialised(DESCRIPTORS, HEADER, hostname=f"host{number}", tags=["x"] * number) for number in range(3)]
    headers.append(b"\xff")
    values: list[bytes | None] = [
        event(3, number, headers[number * 7 % 4], serialised(DESCRIPTORS, STATE, state=str(number)))
        for number in range(9000)
    ]
    rows = decode(values, STATE, names=["timestamp", "state", "tags", "hostname"]).rows.columns.to_pylist()
    assert rows == [
        {"timestamp": number, "state": str(number), "tags": ["x"] * which, "hostname": f"host{which}"}
        for number in range(9000)
        if (which := number * 7 % 4) != 3
    ]


def test_columns_of_the_envelope_or_of_the_body_can_be_selected() -> None:
    value = event(3, 5, b"", serialised(DESCRIPTORS, STATE, state="END"))
    assert decode([value], STATE, names=["timestamp"]).rows.columns.to_pylist() == [{"timestamp": 5}]
    assert decode([value], STATE, names=["state"]).rows.columns.to_pylist() == [{"state": "END"}]


def test_a_tombstone_that_is_to_be_a_row_is_null_in_every_column() -> None:
    value = event(3, 5, b"", b"")
    decoded = decode([None, value], STATE, names=["tags", "timestamp"], tombstone="row")
    assert decoded.rows.columns.to_pylist() == [{"tags": None, "timestamp": None}, {"tags": [], "timestamp": 5}]


def test_defaults_can_be_kept() -> None:
    result = one(GC, "value", collector_name="G1")
    assert (result["pause_time"], result["cause"], result["gc_pause_ratio_1_min"]) == (0, "", 0.0)
    assert one(FS, "value")["status"] == "UNKNOWN"
    assert one(FS)["status"] is None


@pytest.mark.parametrize("port", ["", ":8020"])
def test_paths_lose_the_uri_and_the_uri_loses_its_port(port: str) -> None:
    cluster = f"hdfs://root{port}"
    assert access(cluster, f"{cluster}/src", f"{cluster}/dst") == ("hdfs://root", "/src", "/dst")


def test_paths_of_another_cluster_stay_and_a_repeated_uri_goes_everywhere() -> None:
    assert access("hdfs://a", "hdfs://b/src", "hdfs://a/x:hdfs://a/y") == ("hdfs://a", "hdfs://b/src", "/x:/y")


def test_unset_paths_and_uris_become_what_garmadon_makes_of_them() -> None:
    assert access("", "", "") == ("hdfs://", None, "")
    assert access("", "", "", "value") == ("hdfs://", "", "")
    assert access("hdfs://root", "hdfs://root", "hdfs://root") == ("hdfs://root", "hdfs://root", "")


@pytest.mark.parametrize(
    ("uri", "uniform"),
    [
        ("hdfs://preprod-pa4", "hdfs://preprod-pa4"),
        ("hdfs://preprod-pa4:8020", "hdfs://preprod-pa4"),
        ("hdfs://root", "hdfs://preprod-pa4"),
        ("hdfs://root:8020", "hdfs://preprod-pa4"),
        ("root", "hdfs://preprod-pa4"),
        ("hdfs://garmadon", "hdfs://garmadon-preprod-pa4"),
        ("viewfs://root:1", "viewfs://preprod-pa4"),
        ("file:///", "file:///"),
        ("", "hdfs://"),
    ],
)
def test_a_uri_is_written_by_the_given_name_of_its_cluster(uri: str, uniform: str) -> None:
    assert uniform_uri(uri, {"root": "preprod-pa4", "garmadon": "garmadon-preprod-pa4"}) == uniform


def test_the_names_of_a_job_reach_its_rows() -> None:
    value = event(1, 7, b"", serialised(DESCRIPTORS, FS, uri="hdfs://root:8020"))
    decoded = decode([value], FS, uri_names={"root": "prod"})
    assert decoded.rows.columns.column("uri").to_pylist() == ["hdfs://prod"]


def test_of_a_jvm_the_heap_is_a_row_and_other_sections_are_not() -> None:
    other = {"name": "nonheap", "property": [{"name": "used", "value": "no number"}]}
    assert heap_row(other, heap(init="1", committed="+2", used="-3", max=str(2**63 - 1))) == [1, 2, -3, 2**63 - 1]
    assert heap_row(heap(used="5", unknown="x")) == [None, None, 5, None]


def test_a_jvm_without_a_heap_section_is_an_empty_row() -> None:
    assert heap_row() == heap_row({"name": "threads"}) == [None] * 4


def test_a_heap_value_of_zero_is_null_unless_defaults_are_kept() -> None:
    assert heap_row(heap(init="0", used="1")) == [None, None, 1, None]
    assert heap_row(heap(init="0", used="1"), defaults="value") == [0, None, 1, None]


@pytest.mark.parametrize("text", ["", "many", "1.5", " 1", "1_000", "٣", str(2**63), "9" * 400, "0x10"])
def test_a_heap_value_that_is_not_a_number_is_a_bad_record(text: str) -> None:
    good, bad = (event(1001, 7, b"", serialised(DESCRIPTORS, JVM, section=[heap(used=value)])) for value in ("5", text))
    decoded = decode([good, bad, good], JVM)
    assert decoded.rows.columns.column("used").to_pylist() == [5, 5]
    assert bad_offsets(decoded) == [101]
    assert decoded.bad.errors[0].as_py().startswith("body: heap.used: '")
    assert len(decoded.bad.errors[0].as_py()) < 150


def test_a_job_without_a_header_is_refused() -> None:
    schema = garmadon_schema(DESCRIPTORS, HEADER, STATE)
    with pytest.raises(UserError, match=r"decode\.header is missing"):
        decoder_for(DecodeSpec("garmadon", descriptors=DESCRIPTORS), schema, Policies(), STATE)
    with pytest.raises(UserError, match=r"decode\.message is missing"):
        decoder_for(DecodeSpec("garmadon", descriptors=DESCRIPTORS, header=HEADER), schema, Policies())


BYTES = st.one_of(st.binary(max_size=30), st.sampled_from([bytes.fromhex(item["value_hex"]) for item in GOOD]))
EVENTS = st.builds(event, st.integers(0, 5), st.integers(-(2**63), 2**63 - 1), BYTES, BYTES)


@given(values=st.lists(st.one_of(BYTES, EVENTS), max_size=8), body=st.sampled_from([FS, GC, JVM]))
def test_any_bytes_are_decoded_safely_and_each_event_independently(values: list[bytes], body: MessageName) -> None:
    together = decode(list(values), body)
    alone = [decode([value], body) for value in values]
    assert repr(together.rows.columns.to_pylist()) == repr([r for item in alone for r in item.rows.columns.to_pylist()])
    assert together.bad.errors.to_pylist() == [error for decoded in alone for error in decoded.bad.errors.to_pylist()]
