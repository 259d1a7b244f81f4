"""The window of client keys, and what of it survives."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.logs.wal.errors import WalDamagedError
from penstock.logs.wal.store.frames import FrameHeader
from penstock.logs.wal.store.keys import NAME, ClientKeys


def header(offset: int, at_ms: int = 0) -> FrameHeader:
    return FrameHeader(offset, 1, at_ms, 0, 1, 10, 7)


def test_only_keys_of_durable_appends_are_saved(tmp_path: Path) -> None:
    """The others may still be lost with their records: to answer their repeat would lose them for good."""
    keys = ClientKeys(10, 10.0)
    for number, key in enumerate("abc"):
        keys.note(key, header(number))
    keys.save(tmp_path, durable_end=2)
    after = ClientKeys(10, 10.0)
    after.load(tmp_path)
    assert [each for each in "abc" if after.find(each, 0) is not None] == ["a", "b"]
    assert after.end == 2


def test_what_is_read_again_from_the_log_does_not_push_out_what_only_the_file_knows(tmp_path: Path) -> None:
    keys = ClientKeys(4, 10.0)
    for number, key in enumerate("abcd"):
        keys.note(key, header(number))
    keys.save(tmp_path, durable_end=4)
    after = ClientKeys(4, 10.0)
    after.load(tmp_path)
    for number, key in [(2, "c"), (3, "d")]:
        after.note(key, header(number))
    assert [each for each in "abcd" if after.find(each, 0) is not None] == ["a", "b", "c", "d"]
    after.note("e", header(4))
    assert [each for each in "abcde" if after.find(each, 0) is not None] == ["b", "c", "d", "e"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 2, "entries": []}', b'{"version": 1, "entries": [[1]]}'])
def test_a_file_that_cannot_be_read_stops_the_server(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(WalDamagedError):
        ClientKeys(4, 10.0).load(tmp_path)


def test_the_file_of_version_1_is_written_as_ever(tmp_path: Path) -> None:
    keys = ClientKeys(4, 10.0)
    keys.note("shop:1", header(40, at_ms=1_700_000_000_123))
    keys.save(tmp_path, durable_end=41)
    assert (tmp_path / NAME).read_bytes() == b'{"version":1,"entries":[["shop:1",40,41,1700000000123,10,7]]}'
