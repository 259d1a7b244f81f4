"""A folder after any stop: what was acknowledged is there, a torn tail is cut, and damage is told, never cut."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.logs.wal.errors import WalDamagedError
from penstock.logs.wal.limits import WalLimits
from penstock.logs.wal.store.partition import STEPS
from tests.unit.logs.wal.stores import TOPIC, Folder, abandon, commit, records, values_in

ACKED = [b"a", b"bb", b"ccc"]


def three_appends(folder: Folder) -> None:
    store = folder.with_topic()
    store.append(TOPIC, 0, records(b"a"), "one")
    store.append(TOPIC, 0, records(b"bb", b"ccc"), "two")
    abandon(store)


def test_a_torn_append_is_cut_at_every_byte_and_all_acknowledged_ones_stay(tmp_path: Path) -> None:
    """The third append reached the disk only in part: the file is cut at each of its bytes in turn."""
    first = Folder(tmp_path / "first")
    three_appends(first)
    acked_bytes = first.segments()[0].stat().st_size
    durable = (first.partition / "durable").read_bytes()
    store = first.open()
    store.append(TOPIC, 0, records(b"dddd", b"e"), "three")
    abandon(store)
    whole = first.segments()[0].read_bytes()
    for length in range(acked_bytes, len(whole) + 1):
        folder = Folder(tmp_path / str(length))
        shutil.copytree(first.path, folder.path)
        (folder.partition / "durable").write_bytes(durable)
        folder.segments()[0].write_bytes(whole[:length])
        store = folder.open()
        torn = length < len(whole)
        assert values_in(store) == (ACKED if torn else [*ACKED, b"dddd", b"e"])
        again = store.append(TOPIC, 0, records(b"dddd", b"e"), "three")
        assert (again.start, again.end, again.repeated) == (3, 5, not torn)
        assert values_in(store) == [*ACKED, b"dddd", b"e"]
        store.close()


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"PWFR" * 30, b"\xff" * 46], ids=["zeros", "magic", "ones"])
def test_what_never_was_an_append_is_cut(tmp_path: Path, tail: bytes) -> None:
    folder = Folder(tmp_path / "wal")
    three_appends(folder)
    with folder.segments()[0].open("ab") as file:
        file.write(tail)
    store = folder.open()
    assert values_in(store) == ACKED
    assert store.topic(TOPIC).partition(0).cut_bytes == len(tail)
    store.close()
    assert values_in(folder.open()) == ACKED


def test_acknowledged_records_cut_at_any_byte_are_told(tmp_path: Path) -> None:
    first = Folder(tmp_path / "first")
    three_appends(first)
    whole = first.segments()[0].read_bytes()
    for length in range(len(whole)):
        folder = Folder(tmp_path / str(length))
        shutil.copytree(first.path, folder.path)
        folder.segments()[0].write_bytes(whole[:length])
        with pytest.raises(WalDamagedError):
            folder.open()
        assert folder.segments()[0].read_bytes() == whole[:length], "nothing is changed"


def test_a_damaged_byte_below_the_checkpoint_is_told(tmp_path: Path) -> None:
    first = Folder(tmp_path / "first")
    three_appends(first)
    whole = first.segments()[0].read_bytes()
    for at in range(len(whole)):
        folder = Folder(tmp_path / str(at))
        shutil.copytree(first.path, folder.path)
        folder.segments()[0].write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        with pytest.raises(WalDamagedError):
            folder.open()


def test_without_a_checkpoint_a_later_append_proves_that_a_damaged_one_was_durable(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "wal")
    three_appends(folder)
    (folder.partition / "durable").unlink()
    path = folder.segments()[0]
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"one")] ^= 1
    path.write_bytes(whole)
    with pytest.raises(WalDamagedError) as raised:
        folder.open()
    assert "offset 0" in raised.value.primary
    assert "below 1 was durable" in raised.value.detail


def test_a_torn_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "wal")
    three_appends(folder)
    path = folder.partition / "durable"
    slots = path.read_bytes()
    for slot in (0, 26):
        path.write_bytes(slots[:slot] + b"\0" * 13 + slots[slot + 13 :])
        store = folder.open()
        assert values_in(store) == ACKED
        abandon(store)


def small_segments(path: Path) -> Folder:
    """A folder with a segment for each append."""
    return Folder(path, WalLimits(segment_bytes=1, retention_seconds=0))


def test_a_sealed_segment_that_is_gone_or_short_is_told(tmp_path: Path) -> None:
    for gone in (True, False):
        folder = small_segments(tmp_path / str(gone))
        store = folder.with_topic()
        for value in ACKED:
            store.append(TOPIC, 0, records(value))
        abandon(store)
        sealed = folder.segments()[1]
        short = sealed.read_bytes()[:-1]
        sealed.unlink()
        if not gone:
            sealed.write_bytes(short)
        with pytest.raises(WalDamagedError):
            folder.open()


def test_a_segment_that_lost_all_its_frames_is_told(tmp_path: Path) -> None:
    folder = small_segments(tmp_path)
    store = folder.with_topic()
    for value in ACKED:
        store.append(TOPIC, 0, records(value))
    store.close()
    folder.segments()[-1].unlink()
    with pytest.raises(WalDamagedError) as raised:
        folder.open()
    assert "[2, 3)" in raised.value.primary


class KilledError(Exception):
    """Stands for the end of the process at a step."""


@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_ends_at_any_step_loses_and_repeats_nothing(tmp_path: Path, step: str) -> None:
    """Each append gets a segment of its own, and each is committed and trimmed at once: every step is passed."""
    folder = small_segments(tmp_path)
    wanted = [b"%d" % number for number in range(6)]
    for visit in range(1, 5):
        here = Folder(tmp_path / str(visit), folder.limits)
        store = here.with_topic()
        seen: list[bytes | None] = []
        visits = 0

        def reach(at: str, visit: int = visit) -> None:
            nonlocal visits
            visits += at == step
            if at == step and visits == visit:
                raise KilledError

        abandon(store)
        here.reach = reach
        store = here.open()
        acked: dict[int, tuple[int, int]] = {}
        number = 0
        while number < len(wanted):
            try:
                answer = store.append(TOPIC, 0, records(wanted[number]), f"key-{number}")
                assert acked.setdefault(number, (answer.start, answer.end)) == (answer.start, answer.end)
                seen += values_in(store, start=len(seen))
                commit(store, "job", {0: len(seen)})
                number += 1
            except KilledError:
                abandon(store)
                store = here.open()
        assert visits >= visit, "the step was passed"
        assert seen == wanted
        assert store.append(TOPIC, 0, records(wanted[0]), "key-0").repeated, "the key survives trimming and restarts"
        store.close()


def test_one_process_serves_a_folder(tmp_path: Path) -> None:
    store = Folder(tmp_path).open()
    with pytest.raises(UserError):
        Folder(tmp_path).open()
    store.close()
    Folder(tmp_path).open().close()


def test_a_topic_is_there_with_all_its_partitions_or_not_at_all(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    store = folder.with_topic(3)
    topic_id = store.topic(TOPIC).id
    store.close()
    half = tmp_path / "topics" / ".new-0123"
    shutil.copytree(tmp_path / "topics" / TOPIC / "0", half / "0")
    store = folder.open()
    assert not half.exists()
    assert (list(store.topics()), len(store.topic(TOPIC).partitions), store.topic(TOPIC).id) == ([TOPIC], 3, topic_id)
