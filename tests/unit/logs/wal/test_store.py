"""What the store promises: offsets without holes, repeats, limits, a full disk, and trimming below every job."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from penstock.errors import TransientError, UserError
from penstock.logs.log import Bounds, SliceShrankError
from penstock.logs.wal.errors import UnknownTopicError, WalDamagedError, WalFullError, WalRefusedError
from penstock.logs.wal.limits import WalLimits
from penstock.logs.wal.records import PositionsReport, TopicReport, decode_appends
from penstock.logs.wal.store import STEPS
from tests.unit.logs.wal.stores import TOPIC, Folder, abandon, bounds_of, commit, records, values_in

SMALL = WalLimits(retention_seconds=100, dedup_seconds=1_000, dedup_keys_max=50, reserve_bytes=1024)
EAGER = WalLimits(retention_seconds=0, reserve_bytes=1024)


def test_appends_of_many_sizes_are_read_from_every_offset(tmp_path: Path) -> None:
    store = Folder(tmp_path).with_topic()
    expected: list[bytes | None] = []
    for number in range(40):
        values = [b"%d-%d" % (number, record) * (20_000 if number % 7 == 0 else 1) for record in range(1 + number % 5)]
        [answer] = store.append(TOPIC, records(*values))
        assert (answer.start, answer.end) == (len(expected), len(expected) + len(values))
        expected += values
    for start in range(len(expected)):
        assert values_in(store, start=start) == expected[start:]
    store.close()
    assert values_in(Folder(tmp_path).open()) == expected


def test_a_repeat_gets_the_offsets_of_the_first_and_other_records_under_its_key_are_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path, SMALL)
    store = folder.with_topic()
    [first] = store.append(TOPIC, records(b"a", b"b"), "one")
    store.append(TOPIC, records(b"c"), "two")
    for _ in range(2):
        [again] = store.append(TOPIC, records(b"a", b"b"), "one")
        assert (again.start, again.end, again.repeated) == (first.start, first.end, True)
        with pytest.raises(WalRefusedError):
            store.append(TOPIC, records(b"a", b"x"), "one")
        store.close()
        store = folder.open()
    assert values_in(store) == [b"a", b"b", b"c"]


def test_a_known_key_is_recognised_in_whatever_partition_its_records_would_be(tmp_path: Path) -> None:
    store = Folder(tmp_path).with_topic(8)
    first = store.append(TOPIC, records(b"a", key=b"k1") + records(b"b", key=b"k2"), "one")
    assert store.append(TOPIC, records(b"a", key=b"k1") + records(b"b", key=b"k2"), "one", 5) == [
        type(place)(place.partition, place.start, place.end, True) for place in first
    ]
    for number in range(8):
        with pytest.raises(WalRefusedError):
            store.append(TOPIC, records(b"other", key=b"key-%d" % number), "one")
        with pytest.raises(WalRefusedError):
            store.append(TOPIC, records(b"other"), "one", number)
    assert sum(bounds_of(store, number).end for number in range(8)) == 2


def test_keys_are_forgotten_after_a_time_and_beyond_a_number(tmp_path: Path) -> None:
    folder = Folder(tmp_path, SMALL)
    store = folder.with_topic()
    store.append(TOPIC, records(b"a"), "early")
    folder.monotonic.at += 1_001
    assert not store.append(TOPIC, records(b"a"), "early")[0].repeated
    for number in range(SMALL.dedup_keys_max):
        folder.monotonic.at += 1
        store.append(TOPIC, records(b"b"), str(number))
    store.trim()
    assert store.append(TOPIC, records(b"b"), "0")[0].repeated
    assert not store.append(TOPIC, records(b"a"), "early")[0].repeated


def test_a_clock_that_jumps_forward_and_back_forgets_no_key(tmp_path: Path) -> None:
    folder = Folder(tmp_path, SMALL)
    store = folder.with_topic()
    store.append(TOPIC, records(b"a"), "one")
    for jump in (7_200, -14_400, 7_200):
        folder.clock.at += jump
        store.append(TOPIC, records(b"b"), f"at-{jump}-{folder.clock.at}")
        store.trim()
        store.close()
        folder.monotonic.at = 5.0  # another process, perhaps after a restart of the computer
        store = folder.open()
        assert store.append(TOPIC, records(b"a"), "one")[0].repeated


def test_appends_of_one_group_share_a_transaction_and_a_refused_one_harms_none(tmp_path: Path) -> None:
    steps: list[str] = []
    store = Folder(tmp_path, reach=steps.append).with_topic()
    store.append(TOPIC, records(b"a"), "one")
    steps.clear()
    acts = [store.append_act(TOPIC, records(b"%d" % number), key) for number, key in enumerate(["x", "one", "y", "x"])]
    acts[3] = acts[0]
    results = store.append_all(acts)
    assert steps == ["wal_written", "wal_committed"]
    assert isinstance(results[1], WalRefusedError)
    places = [[(place.start, place.repeated) for place in result] for result in results if isinstance(result, list)]
    assert places == [[(1, False)], [(2, False)], [(1, True)]]
    assert values_in(store) == [b"a", b"0", b"2"]


def test_readers_see_only_what_is_durable(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    seen: list[tuple[str, int]] = []

    def look(step: str) -> None:
        with sqlite3.connect(tmp_path / "wal.db") as other:
            seen.append((step, other.execute("SELECT count(*) FROM appends").fetchone()[0]))

    store = folder.with_topic()
    store._reach = look
    store.append(TOPIC, records(b"a"))
    assert seen == [("wal_written", 0), ("wal_committed", 1)]
    [(synchronous,), (mode,)] = (
        store._db.execute(f"PRAGMA {name}").fetchone() for name in ("synchronous", "journal_mode")
    )
    assert (synchronous, mode) == (2, "wal"), "FULL: a commit ends with an fsync"


class KilledError(TransientError):
    """Stands for the end of the process at a step."""


@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_ends_at_any_step_loses_and_repeats_nothing(tmp_path: Path, step: str) -> None:
    """Each append is committed and trimmed at once: every step is passed."""
    expected = [b"%d" % number for number in range(6)]
    for visit in range(1, 5):
        folder = Folder(tmp_path / str(visit), EAGER)
        abandon(folder.with_topic())
        read: list[bytes | None] = []
        visits = 0

        def reach(at: str, visit: int = visit) -> None:
            nonlocal visits
            visits += at == step
            if at == step and visits == visit:
                raise KilledError("killed")

        folder.reach = reach
        store = None
        acked: dict[int, tuple[int, int]] = {}
        number = 0
        while number < len(expected):
            try:
                store = store or folder.open()
                [answer] = store.append(TOPIC, records(expected[number]), f"key-{number}")
                assert acked.setdefault(number, (answer.start, answer.end)) == (answer.start, answer.end)
                read += values_in(store, start=len(read))
                commit(store, "job", {0: len(read)})
                number += 1
            except KilledError:
                if store is not None:
                    abandon(store)
                store = None
        assert visits >= visit, "the step was passed"
        assert store is not None and read == expected
        assert store.append(TOPIC, records(expected[0]), "key-0")[0].repeated, "the key survives trimming and restarts"
        store.close()


def test_a_full_disk_refuses_appends_and_recovers_once_jobs_have_read(tmp_path: Path) -> None:
    """The database may not grow any more: SQLite answers as it does on a full disk."""
    folder = Folder(tmp_path, EAGER)
    store = folder.with_topic()
    commit(store, "job", {0: 0})
    for number in range(20):
        store.append(TOPIC, records(b"x" * 10_000), str(number))
    [pages] = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    end = 20
    with pytest.raises(WalFullError):
        for end in range(20, 40):
            store.append(TOPIC, records(b"y" * 10_000), str(end))
    assert bounds_of(store) == Bounds(0, end) and end < 30
    assert store.append(TOPIC, records(b"x" * 10_000), "0")[0].repeated, "a repeat needs no space"
    commit(store, "job", {0: end})
    assert bounds_of(store) == Bounds(end, end)
    assert store.append(TOPIC, records(b"z"))[0].start == end
    assert values_in(store) == [b"z"]


def test_without_space_for_the_reserve_only_appends_are_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path, EAGER)
    store = folder.with_topic()
    store.append(TOPIC, records(b"a"))
    store.close()
    folder.limits = WalLimits(retention_seconds=0, reserve_bytes=2**62)
    store = folder.open()
    with pytest.raises(WalFullError):
        store.append(TOPIC, records(b"b"))
    with pytest.raises(WalFullError):
        store.create_topic("other", 1)
    commit(store, "job", {0: 1})
    assert bounds_of(store) == Bounds(1, 1)
    assert not (tmp_path / "reserve").exists()
    store.limits = EAGER
    store.trim()
    assert store.append(TOPIC, records(b"b"))[0].start == 1


def test_space_of_deleted_records_is_given_back(tmp_path: Path) -> None:
    store = Folder(tmp_path, EAGER).with_topic()
    for _ in range(30):
        store.append(TOPIC, records(b"x" * 1_000_000))
    commit(store, "job", {0: 30})
    store.trim()
    store.close()
    assert (tmp_path / "wal.db").stat().st_size < 20_000_000


def test_nothing_is_trimmed_that_a_job_has_not_committed(tmp_path: Path) -> None:
    folder = Folder(tmp_path, SMALL)
    store = folder.with_topic(2)
    for number in range(4):
        store.append(TOPIC, records(b"%d" % number), str(number), 0)
    folder.clock.at += 101
    store.trim()
    assert bounds_of(store) == Bounds(0, 4), "no job is registered"
    commit(store, "fast", {0: 4})
    assert bounds_of(store) == Bounds(4, 4)
    for number in range(4, 8):
        store.append(TOPIC, records(b"%d" % number), str(number), 0)
    folder.clock.at += 101
    commit(store, "slow", {1: 0})
    commit(store, "fast", {0: 8})
    assert bounds_of(store) == Bounds(4, 8), "a job without a position has read nothing"
    commit(store, "slow", {0: 6})
    assert bounds_of(store) == Bounds(6, 8)
    with pytest.raises(SliceShrankError):
        store.read(TOPIC, 0, 5, 8, 100)
    assert store.append(TOPIC, records(b"1"), "1", 0)[0].start == 1, "the key outlives its records"
    store.forget_job("slow")
    assert bounds_of(store) == Bounds(8, 8)
    store.close()
    assert bounds_of(folder.open()) == Bounds(8, 8), "the next offset outlives all records"


def test_committed_records_stay_for_their_retention(tmp_path: Path) -> None:
    folder = Folder(tmp_path, SMALL)
    store = folder.with_topic()
    store.append(TOPIC, records(b"a"))
    commit(store, "job", {0: 1})
    folder.clock.at += 99
    store.trim()
    assert bounds_of(store) == Bounds(0, 1)
    folder.clock.at += 1
    store.trim()
    assert bounds_of(store) == Bounds(1, 1)


def test_a_partition_full_of_unread_records_refuses_and_accepts_more_once_they_are_read(tmp_path: Path) -> None:
    limits = WalLimits(partition_bytes_max=1_000, retention_seconds=10**6, reserve_bytes=1024)
    store = Folder(tmp_path, limits).with_topic()
    commit(store, "job", {0: 0})
    end = 0
    with pytest.raises(WalFullError):
        for end in range(100):
            store.append(TOPIC, records(b"x" * 50), str(end))
    assert values_in(store) == [b"x" * 50] * end
    assert store.append(TOPIC, records(b"x" * 50), "0")[0].repeated, "a repeat needs no space"
    commit(store, "job", {0: end})
    assert store.append(TOPIC, records(b"y"))[0].start == end
    assert store.topic(TOPIC).partitions[0].bytes <= 1_000


def test_a_position_never_moves_back_nor_beyond_the_end_and_a_name_belongs_to_one_table(tmp_path: Path) -> None:
    store = Folder(tmp_path).with_topic()
    store.append(TOPIC, records(b"a", b"b", b"c"))
    topic_id = store.topic(TOPIC).id
    commit(store, "job", {0: 2})
    reported = store.report("job", PositionsReport({TOPIC: TopicReport(topic_id, {0: 1})}, "table"))
    assert (reported.moved, reported.refused) == ([], [(TOPIC, topic_id, 0, "already at 2")])
    for owner, other_id, offset in (("table", topic_id, 4), ("other", topic_id, 3), ("table", "0" * 32, 3)):
        with pytest.raises(WalRefusedError):
            store.report("job", PositionsReport({TOPIC: TopicReport(other_id, {0: offset})}, owner))
    assert list(store.positions()) == [("job", TOPIC, topic_id, 0, 2)]


def test_a_recreated_topic_is_empty_has_another_id_and_no_positions(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    store = folder.with_topic()
    store.append(TOPIC, records(b"a"), "key")
    commit(store, "job", {0: 1})
    old_id = store.topic(TOPIC).id
    prepared = store.append_act(TOPIC, records(b"b"))
    store.delete_topic(TOPIC)
    with pytest.raises(UnknownTopicError):
        store.append(TOPIC, records(b"b"))
    assert isinstance(store.append_all([prepared])[0], UnknownTopicError)
    assert (store.create_topic(TOPIC, 1).id != old_id, store.jobs()) == (True, {})
    assert store.append(TOPIC, records(b"a"), "key")[0].start == 0
    store.close()
    assert values_in(folder.open()) == [b"a"]


@pytest.mark.parametrize("name", ["", ".", "..", ".new-1", "a/b", "a" * 250, "ä", "a\n"])
def test_an_invalid_name_is_refused(tmp_path: Path, name: str) -> None:
    store = Folder(tmp_path).open()
    with pytest.raises(WalRefusedError):
        store.create_topic(name, 1)
    with pytest.raises(WalRefusedError):
        store.report(name, PositionsReport({}))


def test_one_process_serves_a_folder(tmp_path: Path) -> None:
    store = Folder(tmp_path).open()
    with pytest.raises(UserError):
        Folder(tmp_path).open()
    store.close()
    Folder(tmp_path).open().close()


def test_foreign_files_do_not_stop_it(tmp_path: Path) -> None:
    for name in ("notes.txt", "topics", "topics/lost+found", ".DS_Store/x"):
        (tmp_path / name).mkdir(parents=True)
    store = Folder(tmp_path).with_topic()
    store.append(TOPIC, records(b"a"))
    store.close()
    (tmp_path / "wal.db.backup").write_text("x")
    assert values_in(Folder(tmp_path).open()) == [b"a"]


def test_a_folder_of_an_older_or_newer_version_is_refused_and_not_changed(tmp_path: Path) -> None:
    old = tmp_path / "old"
    (old / "topics" / TOPIC).mkdir(parents=True)
    (old / "topics" / TOPIC / "topic.json").write_text('{"version":1,"id":"00","partitions":1}')
    with pytest.raises(UserError) as raised:
        Folder(old).open()
    assert "older version" in raised.value.primary and not (old / "wal.db").exists()
    folder = Folder(tmp_path / "new")
    store = folder.with_topic()
    store._db.execute("PRAGMA user_version = 3")
    store.close()
    with pytest.raises(UserError):
        folder.open()


def test_damage_is_reported_and_nothing_is_skipped(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "wal")
    store = folder.with_topic()
    store.append(TOPIC, records(b"first record"))
    store.append(TOPIC, records(b"second record"))
    store.close()
    path = folder.path / "wal.db"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"first record", b"worst record"))
    store = folder.open()
    with pytest.raises(WalDamagedError):
        list(decode_appends(store.read(TOPIC, 0, 0, 2, 1_000)))
    store.close()
    shutil.rmtree(folder.path)
    folder.path.mkdir()
    path.write_bytes(b"no database" * 1_000)
    with pytest.raises(WalDamagedError):
        folder.open()
    assert path.read_bytes() == b"no database" * 1_000
