"""Garmadon's wire format from end to end: its test vectors become rows by type and day, unusual cases too."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from penstock.job.faults import JobFileError
from penstock.lake.state import Totals
from penstock.tables.registry import load_job
from penstock.watch.verify import verify
from tests.cases.export_garmadon import DESCRIPTORS, GOOD, NOON_MS, SETTINGS, TYPES, VECTORS, heap, vector_bytes
from tests.support.exports import ExportPipe, export_job, type_of
from tests.support.garmadon_descriptors import (
    BODIES,
    HEADER,
    PACKAGE,
    add_message,
    descriptor_set,
    event,
    garmadon_files,
    named,
    serialised,
    write_descriptors,
)
from tests.support.kafka import Produce, Topics

OTHERS = {vector["name"]: vector["value_hex"] and bytes.fromhex(vector["value_hex"]) for vector in VECTORS[len(GOOD) :]}


@pytest.fixture
def garmadon(export: ExportPipe) -> ExportPipe:
    """An export with a descriptor set next to its job file."""
    write_descriptors(export.folder / "garmadon.desc")
    return export


def access(timestamp_ms: int) -> bytes:
    return event(1, timestamp_ms, b"", serialised(DESCRIPTORS, BODIES[1], action="READ"))


def totals(export: ExportPipe) -> Totals:
    return sum((partition.totals for partition in export.state.partitions.values()), Totals())


BAD = [
    (OTHERS["state_event_type3_no_writer"], 'its type "3" is not known'),
    (OTHERS["short_value"], "envelope is broken: 7 bytes, its frame alone has 20"),
    (OTHERS["length_mismatch"], "envelope is broken: 180 bytes, its frame announces 181"),
    (OTHERS["header_not_protobuf"], 'its type "3" is not known'),
    (OTHERS["unknown_type_marker_2"], 'its type "2" is not known'),
    (OTHERS["null_value_tombstone"], "value is null (a tombstone)"),
    (b"", "envelope is broken: 0 bytes"),
    (b'{"type": 1}', "envelope is broken: 11 bytes"),
    (event(-1, NOON_MS, b"", b""), 'its type "-1" is not known'),
    (event(1, NOON_MS, b"\xff", b""), f"header is not a message {HEADER.name}"),
    (event(1, NOON_MS, b"", b"\xff"), f"body is not a message {BODIES[1].name}"),
    (event(1, NOON_MS, b"", b"")[:12] + b"\xff" * 8, "envelope is broken: a header of -1 and a body of -1 bytes"),
    (heap(used=2**63), "body: heap.used: "),
    (access(0), "event time 1970-01-01T00:00:00Z is before 2000-01-01"),
    (access(-1), "is before 2000-01-01"),
    (access(4_102_444_800_000), "event time 2100-01-01T00:00:00Z is more than 86400 s ahead of the clock"),
    (access(2**63 - 1), "not in the years 1 to 9999"),
    (access(-(2**63)), "not in the years 1 to 9999"),
]


def test_bad_events_are_quarantined_with_their_reasons_and_the_good_ones_between_are_filed(
    garmadon: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    good = vector_bytes(GOOD)
    produce(name, [record for number, (bad, _) in enumerate(BAD) for record in (good[number % len(good)], bad)])
    garmadon.describe(name, types=TYPES, on="tombstone: quarantine", **SETTINGS)
    garmadon.run_to_end()
    result = {offset: (reason, value) for offset, reason, value in garmadon.quarantined("offset", "error", "value")}
    assert sorted(result) == [2 * number + 1 for number in range(len(BAD))]
    for number, (value, reason) in enumerate(BAD):
        assert reason in result[2 * number + 1][0]
        assert result[2 * number + 1][1] == value
    assert garmadon.everywhere() == Counter((0, offset) for offset in range(2 * len(BAD)))
    assert totals(garmadon) == Totals(read=2 * len(BAD), written=len(BAD), quarantined=len(BAD))
    assert verify(garmadon.job).ok


def test_the_same_bytes_in_every_partition_are_separate_records_and_unknown_markers_are_quarantined(
    garmadon: ExportPipe, topic: Topics, produce: Produce
) -> None:
    """Garmadon sends some events to every partition, so that each exporter sees them."""
    name = topic(partitions=3)
    state = OTHERS["state_event_type3_no_writer"]
    copies = [access(NOON_MS), access(NOON_MS), state]
    for partition in range(3):
        produce(name, copies, partition=partition)
    garmadon.describe(name, types=TYPES, **SETTINGS)
    garmadon.run_to_end()
    places = [(partition, offset) for partition in range(3) for offset in (0, 1)]
    assert garmadon.rows("fs", "kafka_partition", "kafka_offset") == places
    assert garmadon.quarantined("partition", "offset", "value") == [(partition, 2, state) for partition in range(3)]
    assert garmadon.everywhere() == Counter((partition, offset) for partition in range(3) for offset in range(3))
    assert verify(garmadon.job).ok


def test_a_body_with_a_field_of_the_header_is_refused_with_the_job_file(tmp_path: Path) -> None:
    files = garmadon_files()
    clash = [("Clash", ["string state 1", "string HOSTNAME 2"]), ("Late", ["int64 timestamp 1"])]
    for message, fields in clash:
        add_message(files[-1], message, fields)
    (tmp_path / "garmadon.desc").write_bytes(descriptor_set(files))
    types = [
        f"{item.lower()}: {{values: [{number}], message: {named(item).name}}}" for number, (item, _) in enumerate(clash)
    ]
    path = tmp_path / "job.yaml"
    path.write_text(export_job("localhost:1", tmp_path / "root", "t", types=types, **SETTINGS))
    with pytest.raises(JobFileError) as caught:
        load_job(path)
    result = {fault.key: fault.message for fault in caught.value.faults}
    assert set(result) == {"types.clash.message", "types.late.message"}
    assert f"{PACKAGE}.Clash and {HEADER.name} both have a field HOSTNAME" in result["types.clash.message"]
    assert f"the envelope and {PACKAGE}.Late both have a field timestamp" in result["types.late.message"]
    assert not (tmp_path / "root").exists()


def test_a_type_without_a_message_or_with_one_that_is_not_in_the_set_is_refused(tmp_path: Path) -> None:
    write_descriptors(tmp_path / "garmadon.desc")
    types = [
        "fs: {values: [1]}",
        f"gc: {{values: [1000], message: {PACKAGE}.GcStatistics}}",
        type_of("x", values="[2]"),
    ]
    path = tmp_path / "job.yaml"
    path.write_text(export_job("localhost:1", tmp_path / "root", "t", types=types, **SETTINGS))
    with pytest.raises(JobFileError) as caught:
        load_job(path)
    keys = [fault.key for fault in caught.value.faults]
    assert sorted(keys) == ["types.fs.message", "types.gc.message", "types.x.message", "types.x.schema"]
