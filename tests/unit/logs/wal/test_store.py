"""What the store promises: offsets without holes, repeats, limits, a full disk, and trimming below every job."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from penstock.errors import TransientError, UserError
from penstock.logs.log import Bounds, Partition, SliceShrankError
from penstock.logs.wal import store as store_module
from penstock.logs.wal.records import (
    Appended,
    WalDamagedError,
    WalFullError,
    WalRefusedError,
    decode_appends,
)
from penstock.logs.wal.store import STEPS, WalLimits
from tests.unit.logs.wal.stores import TOPIC, Folder, abandon, append, bounds_of, commit, made, values_in

SMALL = WalLimits(retention_seconds=100, reserve_bytes=1024)
EAGER = WalLimits(retention_seconds=0, reserve_bytes=1024)


def test_appends_of_many_sizes_are_read_from_every_offset(tmp_path: Path) -> None:
    store = Folder(tmp_path).with_topic()
    expected: list[bytes] = []
    for number in range(40):
        values = [b"%d-%d" % (number, record) * (20_000 if number % 7 == 0 else 1) for record in range(1 + number % 5)]
        answer = append(store, *values)
        assert (answer.start, answer.end) == (len(expected), len(expected) + len(values))
        expected += values
    for start in range(len(expected)):
        assert values_in(store, start=start) == expected[start:]
    store.close()
    assert values_in(Folder(tmp_path).open()) == expected


def test_a_repeat_gets_the_offsets_of_the_first_and_other_records_under_its_key_are_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path, SMALL)
    store = folder.with_topic()
    first = append(store, b"a", b"b", client_key="one")
    append(store, b"c", client_key="two")
    for _ in range(2):
        again = append(store, b"a", b"b", client_key="one")
        assert (again.start, again.end, again.repeated) == (first.start, first.end, True)
        with pytest.raises(WalRefusedError):
            append(store, b"a", b"x", client_key="one")
        store.close()
        store = folder.open()
    assert values_in(store) == [b"a", b"b", b"c"]


def test_a_known_idempotency_key_is_recognised_in_every_partition(tmp_path: Path) -> None:
    store = Folder(tmp_path).with_topic(8)
    first = append(store, b"a", b"b", key="k1", client_key="one")
    for number in range(8):
        again = append(store, b"a", b"b", client_key="one", number=number)
        assert again == Appended(first.partition, first.start, first.end, True)
    for number in range(8):
        with pytest.raises(WalRefusedError):
            append(store, b"other", key=f"key-{number}", client_key="one")
        with pytest.raises(WalRefusedError):
            append(store, b"other", client_key="one", number=number)
    assert sum(bounds_of(store, number).end for number in range(8)) == 2


def test_the_newest_keys_are_known_and_each_append_forgets_at_most_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "CLIENT_KEYS_MAX", 50)
    folder = Folder(tmp_path, SMALL)
    store = folder.with_topic()
    for number in range(60):
        append(store, b"a", client_key=str(number))
        [keys] = store._db.execute("SELECT count(*) FROM client_keys").fetchone()
        assert keys == min(50, number + 1)
    folder.clock.at += 10**9
    store.trim()
    store.close()
    store = folder.open()
    assert append(store, b"a", client_key="10").repeated, "no time makes it forget"
    assert not append(store, b"a", client_key="9").repeated


def test_a_recreated_topic_has_no_client_keys_of_the_deleted_one(tmp_path: Path) -> None:
    store = Folder(tmp_path).with_topic()
    for _ in range(3):
        assert not append(store, b"a", client_key="key").repeated
        store.delete_topic(TOPIC)
        store.create_topic(TOPIC, 1)


def test_trimming_uses_short_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "TRIM_BYTES_MAX", 1_000)
    store = Folder(tmp_path, EAGER).with_topic()
    for _ in range(20):
        append(store, b"x" * 500)
    commit(store, "job", {0: 20})
    assert bounds_of(store) == Bounds(2, 20)
    steps: list[str] = []
    store._at_step = steps.append
    store.trim()
    assert bounds_of(store) == Bounds(20, 20)
    assert steps.count("wal_trimmed") == 9 and steps.count("wal_committed") == 10
    assert store.partitions(TOPIC)[0].bytes == 0


def test_a_clock_that_jumps_forward_and_back_forgets_no_key(tmp_path: Path) -> None:
    folder = Folder(tmp_path, SMALL)
    store = folder.with_topic()
    append(store, b"a", client_key="one")
    for jump in (7_200, -14_400, 7_200):
        folder.clock.at += jump
        append(store, b"b", client_key=f"at-{jump}-{folder.clock.at}")
        store.trim()
        store.close()
        store = folder.open()
        assert append(store, b"a", client_key="one").repeated


def test_appends_of_one_group_share_a_transaction_and_a_refused_one_harms_none(tmp_path: Path) -> None:
    steps: list[str] = []
    store = Folder(tmp_path, at_step=steps.append).with_topic()
    append(store, b"a", client_key="one")
    steps.clear()
    appends = [made(b"%d" % number, client_key=key) for number, key in enumerate(["x", "one", "y"])]
    results = store.append_all([*appends, appends[0]])
    assert steps == ["wal_written", "wal_committed"]
    assert isinstance(results[1], WalRefusedError)
    places = [(result.start, result.repeated) for result in results if isinstance(result, Appended)]
    assert places == [(1, False), (2, False), (1, True)]
    assert values_in(store) == [b"a", b"0", b"2"]


def test_readers_see_only_what_is_durable(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    counts: list[tuple[str, int]] = []

    def look(step: str) -> None:
        with sqlite3.connect(tmp_path / "wal.db") as other:
            counts.append((step, other.execute("SELECT count(*) FROM appends").fetchone()[0]))

    store = folder.with_topic()
    store._at_step = look
    append(store, b"a")
    assert counts == [("wal_written", 0), ("wal_committed", 1)]
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
        read: list[bytes] = []
        visits = 0

        def at_step(at: str, visit: int = visit) -> None:
            nonlocal visits
            visits += at == step
            if at == step and visits == visit:
                raise KilledError("killed")

        folder.at_step = at_step
        store = None
        acked: dict[int, tuple[int, int]] = {}
        number = 0
        while number < len(expected):
            try:
                store = store or folder.open()
                answer = append(store, expected[number], client_key=f"key-{number}")
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
        assert append(store, expected[0], client_key="key-0").repeated, "the key survives trimming and restarts"
        store.close()


def test_a_full_disk_refuses_appends_and_recovers_once_jobs_have_read(tmp_path: Path) -> None:
    """The database may not grow any more: SQLite answers as it does on a full disk."""
    folder = Folder(tmp_path, EAGER)
    store = folder.with_topic()
    commit(store, "job", {0: 0})
    for number in range(20):
        append(store, b"x" * 10_000, client_key=str(number))
    [pages] = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    end = 20
    with pytest.raises(WalFullError):
        for end in range(20, 40):
            append(store, b"y" * 10_000, client_key=str(end))
    assert bounds_of(store) == Bounds(0, end) and end < 30
    assert append(store, b"x" * 10_000, client_key="0").repeated, "a repeat needs no space"
    commit(store, "job", {0: end})
    assert bounds_of(store) == Bounds(end, end)
    store.trim()
    assert append(store, b"z").start == end
    assert values_in(store) == [b"z"]


def test_without_space_for_the_reserve_only_appends_are_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path, EAGER)
    store = folder.with_topic()
    append(store, b"a")
    store.close()
    folder.limits = WalLimits(retention_seconds=0, reserve_bytes=2**62)
    store = folder.open()
    with pytest.raises(WalFullError):
        append(store, b"b")
    commit(store, "job", {0: 1})
    assert bounds_of(store) == Bounds(1, 1)
    assert not (tmp_path / "reserve").exists()
    store.limits = EAGER
    store.trim()
    assert append(store, b"b").start == 1


def test_space_of_deleted_records_is_given_back(tmp_path: Path) -> None:
    store = Folder(tmp_path, EAGER).with_topic()
    for _ in range(30):
        append(store, b"x" * 1_000_000)
    commit(store, "job", {0: 30})
    store.trim()
    store.close()
    assert (tmp_path / "wal.db").stat().st_size < 20_000_000


def test_nothing_is_trimmed_that_a_job_has_not_committed(tmp_path: Path) -> None:
    folder = Folder(tmp_path, SMALL)
    store = folder.with_topic(2)
    for number in range(4):
        append(store, b"%d" % number, client_key=str(number), number=0)
    folder.clock.at += 101
    store.trim()
    assert bounds_of(store) == Bounds(0, 4), "no job is registered"
    commit(store, "fast", {0: 4})
    assert bounds_of(store) == Bounds(4, 4)
    for number in range(4, 8):
        append(store, b"%d" % number, client_key=str(number), number=0)
    folder.clock.at += 101
    commit(store, "slow", {1: 0})
    commit(store, "fast", {0: 8})
    assert bounds_of(store) == Bounds(4, 8), "a job without a position has read nothing"
    commit(store, "slow", {0: 6})
    assert bounds_of(store) == Bounds(6, 8)
    with pytest.raises(SliceShrankError):
        store.read(TOPIC, 0, 5, 8, 100)
    assert append(store, b"1", client_key="1", number=0).start == 1, "the key outlives its records"
    store.forget_job("slow")
    assert bounds_of(store) == Bounds(8, 8)
    store.close()
    assert bounds_of(folder.open()) == Bounds(8, 8), "the next offset outlives all records"


def test_committed_records_stay_for_their_retention(tmp_path: Path) -> None:
    folder = Folder(tmp_path, SMALL)
    store = folder.with_topic()
    append(store, b"a")
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
            append(store, b"x" * 50, client_key=str(end))
    assert values_in(store) == [b"x" * 50] * end
    assert append(store, b"x" * 50, client_key="0").repeated, "a repeat needs no space"
    commit(store, "job", {0: end})
    assert append(store, b"y").start == end
    assert store.partitions(TOPIC)[0].bytes <= 1_000


def test_a_position_never_moves_back_nor_beyond_the_end(tmp_path: Path) -> None:
    store = Folder(tmp_path).with_topic()
    append(store, b"a", b"b", b"c")
    place = store.partitions(TOPIC)[0].partition
    commit(store, "job", {0: 2})
    assert store.report("job", [(place, 1)]) == [2]
    for partition, offset in ((place, 4), (Partition(TOPIC, "0" * 32, 0), 3)):
        with pytest.raises(WalRefusedError):
            store.report("job", [(partition, offset)])
    assert store.partitions()[0].positions == {"job": 2}
    store.report("job", [(place, 1)], reset=True)
    assert store.partitions()[0].positions == {"job": 1}, "a job that begins again states where"


def test_a_recreated_topic_is_empty_has_another_id_and_no_positions(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    store = folder.with_topic()
    append(store, b"a", client_key="key")
    commit(store, "job", {0: 1})
    [old] = store.partitions(TOPIC)
    store.delete_topic(TOPIC)
    with pytest.raises(WalRefusedError) as refused:
        append(store, b"b")
    assert refused.value.status == 404
    [new] = store.create_topic(TOPIC, 1)
    assert new.partition.topic_id != old.partition.topic_id and not new.positions
    assert append(store, b"a", client_key="key").start == 0
    store.close()
    assert values_in(folder.open()) == [b"a"]


@pytest.mark.parametrize("name", ["", ".", "..", ".new-1", "a/b", "a" * 250, "ä", "a\n"])
def test_an_invalid_name_is_refused(tmp_path: Path, name: str) -> None:
    store = Folder(tmp_path).open()
    with pytest.raises(WalRefusedError):
        store.create_topic(name, 1)
    with pytest.raises(WalRefusedError):
        store.report(name, [])


def test_one_process_serves_a_folder(tmp_path: Path) -> None:
    store = Folder(tmp_path).open()
    with pytest.raises(UserError):
        Folder(tmp_path).open()
    store.close()
    Folder(tmp_path).open().close()


def test_foreign_files_do_not_stop_the_wal(tmp_path: Path) -> None:
    for name in ("notes.txt", "topics", "topics/lost+found", ".DS_Store/x"):
        (tmp_path / name).mkdir(parents=True)
    store = Folder(tmp_path).with_topic()
    append(store, b"a")
    store.close()
    (tmp_path / "wal.db.backup").write_text("x")
    assert values_in(Folder(tmp_path).open()) == [b"a"]


@pytest.mark.parametrize("version", [4, 6])
def test_a_folder_of_an_older_or_newer_version_is_refused(tmp_path: Path, version: int) -> None:
    folder = Folder(tmp_path)
    store = folder.with_topic()
    store._db.execute(f"PRAGMA user_version = {version}")
    store.close()
    with pytest.raises(UserError, match=f"version {version}"):
        folder.open()


def test_damage_is_reported_and_nothing_is_skipped(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "wal")
    store = folder.with_topic()
    append(store, b"first record")
    append(store, b"second record")
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
