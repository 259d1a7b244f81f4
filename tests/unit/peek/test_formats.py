"""The format of single values is recognised by their bytes."""

from __future__ import annotations

import gzip

import pytest

from penstock.peek.formats import content_of

EXAMPLES = {
    b'{"a": 1}': "JSON",
    b'{"a": ': "broken JSON",
    b'{"a": "\xff"}': "broken JSON",
    gzip.compress(b'{"a": 1}'): "gzip JSON",
    gzip.compress(b"tea"): "gzip text",
    b'{"fields": {"idle": 1.5}, "name": "cpu", "tags": {"host": "a"}, "timestamp": 1700000000}': "Telegraf",
    b"cpu,host=a idle=1.5 1700000000000000000": "Influx",
    b"level=info msg=1": "text",
    b"tea for two\n": "text",
    b"[1, 2]": "text",
    b"\x00\x00\x00\x00\x07\x02tea\x04": "Avro (registry id 7)",
    b"\x00\x00\x00\x00\x07\x00\x0a\x03tea": "Protobuf (registry id 7)",
    b'\x00\x00\x00\x00\x07{"a": 1}': "JSON (registry id 7)",
    b"\n\x03tea\x10\x05": "Protobuf",
    b"\xff\xfe\x01": "binary",
    b"\x00\x00\x00\x00\x00\x00\x00\x11": "binary",
    b"\x1f\x8bno gzip": "binary",
    b"": "empty",
}


@pytest.mark.parametrize(("value", "label"), EXAMPLES.items(), ids=EXAMPLES.values())
def test_format_is_recognised(value: bytes, label: str) -> None:
    assert content_of(value).label == label


def test_record_without_a_value_is_a_tombstone() -> None:
    assert content_of(None).label == "tombstone"
