"""What the store promises while it runs: offsets, repeats, shared fsyncs, limits, and trimming below every job."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.logs.log import Bounds, SliceShrankError
from penstock.logs.wal.errors import UnknownTopicError, WalDamagedError, WalFullError, WalRefusedError
from penstock.logs.wal.limits import WalLimits
from penstock.logs.wal.store.frames import WalRecord
from tests.unit.logs.wal.stores import TOPIC, DiskFailedError, Folder, abandon, commit, records, values_in

SMALL = WalLimits(segment_bytes=200, retention_seconds=100, dedup_seconds=1_000, dedup_keys_max=50)


def test_many_appends_over_many_segments_are_read_from_every_offset(tmp_path: Path) -> None:
    store = Folder(tmp_path, SMALL).with_topic()
    wanted: list[bytes | None] = []
    for number in range(40):
        values = [b"%d-%d" % (number, each) for each in range(1 + number % 5)]
        answer = store.append(TOPIC, 0, records(*values))
        assert (answer.start, answer.end) == (len(wanted), len(wanted) + len(values))
        wanted += values
    assert len(Folder(tmp_path).segments()) > 10
    for start in range(len(wanted)):
        assert values_in(store, start=start) == wanted[start:]
    store.close()
    assert values_in(Folder(tmp_path, SMALL).open()) == wanted


def test_large_and_small_appends_are_found_in_one_segment(tmp_path: Path) -> None:
    store = Folder(tmp_path).with_topic()
    wanted = [bytes([number]) * (200_000 if number % 3 == 0 else 5) for number in range(12)]
    for value in wanted:
        store.append(TOPIC, 0, records(value))
    for start in range(len(wanted)):
        assert values_in(store, start=start) == wanted[start:]


def test_a_repeat_gets_the_offsets_of_the_first_and_other_records_under_its_key_are_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path, SMALL)
    store = folder.with_topic()
    first = store.append(TOPIC, 0, records(b"a", b"b"), "one")
    store.append(TOPIC, 0, records(b"c"), "two")
    for _ in range(2):
        again = store.append(TOPIC, 0, records(b"a", b"b"), "one")
        assert (again.start, again.end, again.repeated) == (first.start, first.end, True)
        with pytest.raises(WalRefusedError):
            store.append(TOPIC, 0, records(b"a", b"x"), "one")
        store.close()
        store = folder.open()
    assert values_in(store) == [b"a", b"b", b"c"]


def test_keys_are_forgotten_after_a_time_and_beyond_a_number(tmp_path: Path) -> None:
    folder = Folder(tmp_path, SMALL)
    store = folder.with_topic()
    store.append(TOPIC, 0, records(b"a"), "early")
    folder.clock.at += 1_001
    assert not store.append(TOPIC, 0, records(b"a"), "early").repeated
    for number in range(SMALL.dedup_keys_max):
        store.append(TOPIC, 0, records(b"b"), str(number))
    assert store.append(TOPIC, 0, records(b"b"), "0").repeated
    assert not store.append(TOPIC, 0, records(b"a"), "early").repeated


def test_threads_share_an_fsync_and_each_record_has_one_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first fsync waits until all others have written: one more fsync is enough for them."""
    store = Folder(tmp_path).with_topic()
    really, calls, written = os.fsync, [0], threading.Semaphore(0)

    def counted(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] == 1:
            for _ in range(8):
                assert written.acquire(timeout=60)
        really(descriptor)

    object.__setattr__(store._context, "reach", lambda step: written.release() if step == "wal_written" else None)
    monkeypatch.setattr(os, "fsync", counted)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: store.append(TOPIC, 0, records(b"%d" % number)), range(8)))
    assert calls[0] == 2
    assert sorted(each.start for each in answers) == list(range(8))
    assert sorted(values_in(store)) == sorted(b"%d" % number for number in range(8))  # type: ignore[type-var]


def test_readers_see_only_what_is_durable(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    store = folder.with_topic()
    partition = store.topic(TOPIC).partition(0)
    seen: list[tuple[str, Bounds, bool]] = []

    def look(step: str) -> None:
        seen.append((step, partition.bounds(), bool(partition.read(0, 10, 1_000))))

    object.__setattr__(store._context, "reach", look)
    store.append(TOPIC, 0, records(b"a"))
    assert seen == [
        ("wal_written", Bounds(0, 0), False),
        ("wal_durable", Bounds(0, 0), False),
        ("wal_checkpointed", Bounds(0, 1), True),
    ]


def test_what_a_dead_process_left_is_made_durable_before_anybody_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last append may be in memory of the system only."""
    folder = Folder(tmp_path)
    store = folder.with_topic()
    store.append(TOPIC, 0, records(b"a"))
    abandon(store)
    synced: list[int] = []
    really = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        really(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    assert values_in(folder.open()) == [b"a"]
    assert folder.segments()[0].stat().st_ino in synced


def test_after_a_failed_fsync_nothing_is_acknowledged_and_it_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Folder(tmp_path).with_topic()
    calls = []

    def broken(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(DiskFailedError):
        store.append(TOPIC, 0, records(b"a"))
    with pytest.raises(WalDamagedError):
        store.append(TOPIC, 0, records(b"b"))
    assert len(calls) == 1
    assert store.topic(TOPIC).partition(0).bounds() == Bounds(0, 0)


def test_a_full_disk_refuses_and_leaves_no_half_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path)
    store = folder.with_topic()
    store.append(TOPIC, 0, records(b"a"))
    really = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 60:
            raise OSError(28, "No space left on device")
        return really(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(WalFullError):
        store.append(TOPIC, 0, records(b"b" * 100), "key")
    monkeypatch.undo()
    assert not store.append(TOPIC, 0, records(b"b" * 100), "key").repeated
    abandon(store)
    assert values_in(folder.open()) == [b"a", b"b" * 100]


def test_nothing_is_trimmed_that_a_job_has_not_committed(tmp_path: Path) -> None:
    folder = Folder(tmp_path, WalLimits(segment_bytes=1, retention_seconds=100))
    store = folder.with_topic(2)
    for number in range(4):
        store.append(TOPIC, 0, records(b"%d" % number), str(number))
    partition = store.topic(TOPIC).partition(0)
    folder.clock.at += 1_000
    store.trim()
    assert partition.bounds() == Bounds(0, 4), "no job is registered"
    commit(store, "slow", {1: 0})
    commit(store, "fast", {0: 4})
    assert partition.bounds() == Bounds(0, 4), "a job of the topic holds every partition"
    commit(store, "slow", {0: 3})
    assert partition.bounds() == Bounds(3, 4)
    with pytest.raises(SliceShrankError):
        partition.read(2, 4, 100)
    store.close()
    store = folder.open()
    assert store.topic(TOPIC).partition(0).bounds() == Bounds(3, 4)
    store.forget_job("slow")
    assert store.topic(TOPIC).partition(0).bounds() == Bounds(4, 4)
    answer = store.append(TOPIC, 0, records(b"4"))
    assert answer.start == 4, "offsets go on after everything was trimmed"
    store.close()
    store = folder.open()
    assert store.append(TOPIC, 0, records(b"0"), "0").start == 0, "keys survive trimming"
    assert values_in(store) == [b"4"]


def test_committed_records_stay_until_their_retention_is_over(tmp_path: Path) -> None:
    folder = Folder(tmp_path, SMALL)
    store = folder.with_topic()
    store.append(TOPIC, 0, records(b"a"))
    commit(store, "job", {0: 1})
    folder.clock.at += 99
    store.trim()
    assert store.topic(TOPIC).partition(0).bounds() == Bounds(0, 1)
    folder.clock.at += 1
    store.trim()
    assert store.topic(TOPIC).partition(0).bounds() == Bounds(1, 1)


def test_a_partition_full_of_unread_records_refuses_and_takes_more_once_they_are_read(tmp_path: Path) -> None:
    limits = WalLimits(segment_bytes=300, partition_bytes_max=1_000, retention_seconds=10**6)
    store = Folder(tmp_path, limits).with_topic()
    commit(store, "job", {0: 0})
    end = 0
    with pytest.raises(WalFullError):
        for end in range(100):
            store.append(TOPIC, 0, records(b"x" * 50), str(end))
    assert values_in(store) == [b"x" * 50] * end
    assert store.append(TOPIC, 0, records(b"x" * 50), "0").repeated, "a repeat needs no room"
    commit(store, "job", {0: end})
    assert store.append(TOPIC, 0, records(b"y")).start == end
    assert store.topic(TOPIC).partition(0).size_bytes <= 1_000


def test_a_position_never_moves_back_nor_beyond_the_end_and_a_name_belongs_to_one_table(tmp_path: Path) -> None:
    store = Folder(tmp_path).with_topic()
    store.append(TOPIC, 0, records(b"a", b"b", b"c"))
    topic_id = store.topic(TOPIC).id
    commit(store, "job", {0: 2})
    reported = store.report("job", "table", {TOPIC: (topic_id, {0: 1})})
    assert (dict(reported.moved), list(reported.refused.values())) == ({}, ["already at 2"])
    for owner, wanted_id, offset in (("table", topic_id, 4), ("other", topic_id, 3), ("table", "0" * 32, 3)):
        with pytest.raises(WalRefusedError):
            store.report("job", owner, {TOPIC: (wanted_id, {0: offset})})
    assert store.jobs.of("job") == {(TOPIC, topic_id, 0): 2}


def test_a_recreated_topic_is_empty_has_another_id_and_no_positions(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    store = folder.with_topic()
    store.append(TOPIC, 0, records(b"a"), "key")
    commit(store, "job", {0: 1})
    old = store.topic(TOPIC)
    store.delete_topic(TOPIC)
    with pytest.raises(UnknownTopicError):
        store.append(TOPIC, 0, records(b"b"))
    with pytest.raises(UnknownTopicError):
        old.partition(0).append(records(b"b"))
    new = store.create_topic(TOPIC, 1)
    assert (new.id != old.id, store.jobs.of("job")) == (True, {})
    assert store.append(TOPIC, 0, records(b"a"), "key").start == 0
    store.close()
    assert values_in(folder.open()) == [b"a"]


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [WalRecord(b"x" * (1024 * 1024 + 1))],
        [WalRecord(b"", headers=(("a", b"x" * 1024 * 1024),))],
        [WalRecord(b"", headers=(("a", b""),) * 1_001)],
        [WalRecord(b"")] * 100_001,
    ],
    ids=["none", "large", "large header", "headers", "records"],
)
def test_what_is_beyond_a_limit_is_refused_whole(tmp_path: Path, bad: list[WalRecord]) -> None:
    store = Folder(tmp_path).with_topic()
    with pytest.raises(WalRefusedError):
        store.append(TOPIC, 0, bad)
    with pytest.raises(WalRefusedError):
        store.append(TOPIC, 0, records(b"a"), "k" * 256)
    assert values_in(store) == []


@pytest.mark.parametrize("name", ["", ".", "..", ".new-1", "a/b", "a" * 250, "ä", "a\n"])
def test_a_name_that_is_no_folder_of_its_own_is_refused(tmp_path: Path, name: str) -> None:
    store = Folder(tmp_path).open()
    with pytest.raises(WalRefusedError):
        store.create_topic(name, 1)
    with pytest.raises(WalRefusedError):
        store.report(name, "", {})


def test_files_of_version_1_are_written_as_ever_and_other_versions_stop_the_server(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    store = folder.with_topic(2)
    topic_id = store.topic(TOPIC).id
    store.append(TOPIC, 1, records(b"a"))
    commit(store, "shop", {1: 1})
    store.close()
    topic, job = tmp_path / "topics" / TOPIC / "topic.json", tmp_path / "jobs" / "shop.json"
    assert topic.read_text() == f'{{"version":1,"id":"{topic_id}","partitions":2}}'
    positions = f'{{"topic":"{TOPIC}","topic_id":"{topic_id}","offsets":{{"1":1}}}}'
    assert job.read_text() == f'{{"version":1,"owner":"table","topics":[{positions}]}}'
    for path in (topic, job):
        kept = path.read_text()
        for other in (kept.replace('"version":1', '"version":2'), kept[:-1], ""):
            path.write_text(other)
            with pytest.raises(WalDamagedError):
                folder.open()
        path.write_text(kept)
    assert folder.open().jobs.of("shop") == {(TOPIC, topic_id, 1): 1}
