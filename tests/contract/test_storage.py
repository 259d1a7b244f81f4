"""The contract of every storage, checked on a local folder, in memory, on a real S3 server and on a real HDFS."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import OutcomeUnknownError, PenstockError, TransientError, UserError
from penstock.storage import NotFoundError, Storage, open_storage
from tests.support.memory_storage import MemoryStorage

BUCKET = "lake"
RACERS = 16


@pytest.fixture(scope="module")
def s3_options(s3_endpoint: str) -> dict[str, str]:
    """Names as other libraries write them, too."""
    return {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "aws_access_key_id": "id",
        "aws_secret_access_key": "key",
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
    }


@pytest.fixture(params=["local", "file url", "memory", "s3", pytest.param("hdfs", marks=pytest.mark.hdfs)])
def storage(request: pytest.FixtureRequest, tmp_path: Path, s3_options: dict[str, str]) -> Storage:
    match request.param:
        case "hdfs":
            return open_storage(request.getfixturevalue("hdfs").url(f"ü {tmp_path.name}"), {})
        case "local":
            return open_storage(str(tmp_path / "not yet there"), {})
        case "file url":
            return open_storage((tmp_path / "ü b").as_uri(), {})
        case "memory":
            return MemoryStorage()
        case _:
            return open_storage(f"s3://{BUCKET}/tables/{tmp_path.name}", s3_options)


def paths(storage: Storage, prefix: str = "") -> list[str]:
    return sorted(entry.path for entry in storage.list(prefix))


def race(act: Callable[[int], bool]) -> list[int]:
    """The numbers of the threads whose call succeeded, of `RACERS` that start together."""
    winners: list[int] = []
    errors: list[PenstockError] = []
    line = threading.Barrier(RACERS)

    def run(number: int) -> None:
        line.wait()
        try:
            if act(number):
                winners.append(number)
        except PenstockError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return winners


def read_range(storage: Storage, path: str, start: int, length: int) -> bytes:
    with storage.open_reader(path) as source:
        source.seek(start)
        return source.read(length)


def test_a_written_object_is_read_back_and_listed(storage: Storage) -> None:
    before = datetime.now(UTC) - timedelta(seconds=2)
    storage.put("a/b/c.bin", b"hello")
    storage.put("a/b/c.bin", b"hello!")
    assert storage.read("a/b/c.bin") == b"hello!"
    assert storage.size_bytes("a/b/c.bin") == 6
    (entry,) = storage.list()
    assert (entry.path, entry.size_bytes) == ("a/b/c.bin", 6)
    assert before <= entry.modified_at <= datetime.now(UTC) + timedelta(seconds=2)


def test_an_empty_or_missing_folder_lists_nothing(storage: Storage) -> None:
    assert paths(storage) == []
    assert paths(storage, "nowhere") == []


def test_a_listing_covers_the_folder_and_not_names_that_begin_alike(storage: Storage) -> None:
    for path in ("day=1/x.pq", "day=1/deep/y.pq", "day=11/z.pq", "day=1.pq", "_delta_log/0.json", ".hidden"):
        storage.put(path, b"")
    assert paths(storage, "day=1") == ["day=1/deep/y.pq", "day=1/x.pq"]
    assert paths(storage, "day=1/") == ["day=1/deep/y.pq", "day=1/x.pq"]
    assert len(paths(storage)) == 6


def test_a_listing_can_begin_after_a_path(storage: Storage) -> None:
    for path in ("a/day=1/x", "a/day=2/x", "a/day=2/y", "a/day=3/x", "a/other", "b/day=3/x"):
        storage.put(path, b"")

    def after(path: str) -> list[str]:
        return sorted(item.path for item in storage.list("a", path))

    assert after("a/day=2") == ["a/day=2/x", "a/day=2/y", "a/day=3/x", "a/other"]
    assert after("a/day=2/x") == ["a/day=2/y", "a/day=3/x", "a/other"]
    assert after("a/z") == []


@pytest.mark.parametrize("path", ["k=a%20b/x.pq", "k=%C3%A9/x.pq", "with blank/ü.bin", "a+b=c,d/~x"])
def test_a_path_is_taken_literally(storage: Storage, path: str) -> None:
    storage.put(path, b"1")
    writer = storage.open_writer(path + "2")
    writer.write(b"22")
    writer.close()
    assert storage.read(path) == b"1"
    assert storage.read(path + "2") == b"22"
    assert paths(storage) == [path, path + "2"]


def test_a_missing_object_raises_not_found(storage: Storage) -> None:
    assert not storage.exists("none")
    for act in (storage.read, storage.size_bytes, storage.open_reader):
        with pytest.raises(NotFoundError):
            act("none")
    with pytest.raises(NotFoundError):
        storage.rename_if_absent("none", "target")
    assert not storage.exists("target")


def test_a_delete_can_be_repeated(storage: Storage) -> None:
    storage.put("x", b"1")
    assert storage.exists("x")
    storage.delete("x")
    storage.delete("x")
    assert not storage.exists("x")


def test_a_range_ends_where_the_object_ends(storage: Storage) -> None:
    storage.put("x", b"0123456789")
    storage.put("empty", b"")
    assert read_range(storage, "x", 2, 3) == b"234"
    assert read_range(storage, "x", 8, 100) == b"89"
    assert read_range(storage, "x", 10, 1) == b""
    assert read_range(storage, "x", 50, 1) == b""
    assert read_range(storage, "x", 3, 0) == b""
    assert read_range(storage, "empty", 0, 5) == b""


def test_put_if_absent_keeps_the_first(storage: Storage) -> None:
    assert storage.put_if_absent("log/1", b"first")
    assert not storage.put_if_absent("log/1", b"second")
    assert storage.read("log/1") == b"first"


def test_of_sixteen_conditional_puts_exactly_one_wins(storage: Storage) -> None:
    for number in range(5):
        name = f"log/{number}"
        (winner,) = race(lambda racer, name=name: storage.put_if_absent(name, b"%d" % racer))  # type: ignore[misc]
        assert storage.read(name) == b"%d" % winner


def test_rename_if_absent_never_replaces(storage: Storage) -> None:
    storage.put("staged", b"new")
    storage.put("taken", b"old")
    assert not storage.rename_if_absent("staged", "taken")
    assert storage.read("taken") == b"old"
    assert storage.read("staged") == b"new"
    assert storage.rename_if_absent("staged", "folder/final")
    assert storage.read("folder/final") == b"new"


def test_of_sixteen_renames_to_one_name_exactly_one_wins(storage: Storage) -> None:
    for racer in range(RACERS):
        storage.put(f"staged/{racer}", b"%d" % racer)
    (winner,) = race(lambda racer: storage.rename_if_absent(f"staged/{racer}", "final"))
    assert storage.read("final") == b"%d" % winner


def test_a_streamed_object_of_several_parts_is_whole(storage: Storage) -> None:
    part = bytes(range(256)) * 4096
    writer = storage.open_writer("big/file.pq")
    for _ in range(20):
        assert writer.write(part) == len(part)
    assert writer.tell() == 20 * len(part)
    writer.close()
    writer.close()
    assert writer.closed
    assert storage.size_bytes("big/file.pq") == 20 * len(part)
    assert read_range(storage, "big/file.pq", 19 * len(part), len(part)) == part


def test_an_abandoned_writer_takes_further_writes_and_completes_nothing(storage: Storage) -> None:
    writer = storage.open_writer("half")
    writer.write(b"1234")
    writer.abandon()
    writer.write(b"5678")
    writer.close()
    writer.abandon()
    assert not storage.exists("half") or storage.read("half") == b"1234"


def test_pyarrow_writes_and_reads_parquet_through_the_storage(storage: Storage) -> None:
    table = pa.table({"x": list(range(1000)), "y": [str(i) for i in range(1000)]})
    sink = storage.open_writer("t/a.pq")
    pq.write_table(table, sink, row_group_size=100)
    sink.close()
    with storage.open_reader("t/a.pq") as source:
        assert pq.ParquetFile(source).read_row_group(3, columns=["y"]) == table.slice(300, 100).select(["y"])


def test_a_reader_seeks_like_a_file(storage: Storage) -> None:
    storage.put("x", b"0123456789")
    with storage.open_reader("x") as source:
        assert source.seek(-3, os.SEEK_END) == 7
        assert source.read(2) == b"78"
        assert source.tell() == 9
        assert source.seek(-1, os.SEEK_CUR) == 8
        assert source.read() == b"89"
        assert source.read(5) == b""
        source.seek(4)
        buffer = bytearray(3)
        assert source.readinto(buffer) == 3  # type: ignore[attr-defined]
        assert bytes(buffer) == b"456"


@pytest.mark.parametrize("path", ["../outside", "a/../../outside"])
def test_a_path_cannot_leave_the_root(storage: Storage, path: str) -> None:
    with pytest.raises(UserError):
        storage.put(path, b"1")
    with pytest.raises(UserError):
        storage.open_writer(path)


def test_local_and_s3_storages_can_be_pickled(tmp_path: Path, s3_options: dict[str, str]) -> None:
    for url, options in ((str(tmp_path), {}), (f"s3://{BUCKET}/travel", s3_options)):
        storage = open_storage(url, options)
        storage.put("x", b"1")
        assert pickle.loads(pickle.dumps(storage)).read("x") == b"1"


def test_opening_a_local_folder_creates_nothing(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "table"), {})
    assert paths(storage) == []
    assert list(tmp_path.iterdir()) == []


def test_a_local_rename_takes_the_source_away_and_an_s3_one_leaves_it(
    tmp_path: Path, s3_options: dict[str, str]
) -> None:
    local, remote = open_storage(str(tmp_path), {}), open_storage(f"s3://{BUCKET}/renames", s3_options)
    for storage in (local, remote):
        storage.put("a", b"1")
        assert storage.rename_if_absent("a", "b")
    assert paths(local) == ["b"]
    assert paths(remote) == ["a", "b"]


def test_a_half_written_local_file_is_listed_so_that_vacuum_finds_it(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), {})
    writer = storage.open_writer("day=1/s.x.pq")
    writer.write(b"1234")
    writer.abandon()
    assert paths(storage) == ["day=1/s.x.pq"]


def test_files_are_durable_before_the_commit_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(number: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{number}"))
        fsync(number)

    monkeypatch.setattr(os, "fsync", note)
    storage = open_storage(str(tmp_path), {})
    writer = storage.open_writer("staged/x.pq")
    writer.write(b"rows")
    writer.close()
    assert synced == [f"{tmp_path}/staged/x.pq", f"{tmp_path}/staged"]
    assert storage.put_if_absent("ledger/1.json", b"x.pq")
    assert synced[2:] == [f"{tmp_path}/ledger/1.json", f"{tmp_path}/ledger"]
    assert storage.rename_if_absent("staged/x.pq", "day=1/x.parquet")
    assert synced[4:] == [f"{tmp_path}/day=1"]


def test_a_full_disk_is_a_transient_error_with_a_clear_message(tmp_path: Path) -> None:
    # The link stands in for a file on a full disk; writing in place goes through it and leaves the device alone.
    (tmp_path / "x.pq").symlink_to("/dev/full")
    writer = open_storage(str(tmp_path), {}).open_writer("x.pq")
    with pytest.raises(TransientError) as caught:
        writer.write(b"1")
    assert "no space left" in caught.value.primary
    with pytest.raises(TransientError):
        writer.close()
    writer.abandon()


def test_a_folder_without_permission_is_a_user_error() -> None:
    program = """
        import os, sys
        from penstock.errors import UserError
        from penstock.storage import NotFoundError, open_storage
        folder = sys.argv[1]
        os.mkdir(f"{folder}/closed")
        os.chmod(folder, 0o755)
        os.chmod(f"{folder}/closed", 0o555)
        if os.getuid() == 0:
            os.setuid(65534)
        storage = open_storage(f"{folder}/closed", {})
        for act in (storage.put, storage.put_if_absent, lambda path, _: storage.open_writer(path)):
            try:
                act("x/y", b"1")
            except UserError as error:
                assert "permission denied" in error.primary and "closed/x/y" in error.primary and error.hint, error
                assert not isinstance(error, NotFoundError)
            else:
                sys.exit("written")
    """
    # Not below tmp_path: a user other than root could not walk down to it.
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", textwrap.dedent(program), folder]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr


def test_a_store_that_cannot_be_reached_is_transient_and_a_conditional_put_to_it_unknown() -> None:
    options = {
        "aws_endpoint_url": "http://127.0.0.1:9",
        "aws_access_key_id": "id",
        "aws_secret_access_key": "key",
        "aws_region": "us-east-1",
        "allow_http": "true",
        "max_retries": "0",
    }
    storage = open_storage("s3://lake/t", options)
    with pytest.raises(TransientError):
        storage.read("x")
    with pytest.raises(OutcomeUnknownError):
        storage.put_if_absent("x", b"1")


def test_a_missing_bucket_is_a_user_error(s3_options: dict[str, str]) -> None:
    with pytest.raises(UserError):
        open_storage("s3://no-such-bucket/t", s3_options).put("x", b"1")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("hdfs://a-name-service-without-settings/t", {}),
        ("hdfs://name:8020/a/../t", {}),
        ("hdfs://name:8020/t", {"aws_region": "us-east-1"}),
        ("ftp://host/t", {}),
        ("file://host/t", {}),
        ("s3://lake/t", {"aws_acess_key_id": "typo"}),
        ("s3://lake/t", {"max_retries": "many"}),
    ],
)
def test_a_url_or_option_that_cannot_work_is_refused_at_once(url: str, options: dict[str, str]) -> None:
    with pytest.raises(UserError):
        open_storage(url, options)


def test_the_sizes_of_many_objects_are_known_and_those_that_are_not_there_are_left_out(storage: Storage) -> None:
    there = {"s.b.2.pq": 2, "s.a.1.pq": 1, "day=a b%/s.c.pq": 3, "day=ü/s.d.pq": 4, "z/y/s.e.pq": 0, "a.pq": 5}
    for path, size_bytes in there.items():
        storage.put(path, b"x" * size_bytes)
    assert storage.sizes(there) == there
    requested = ["s.b.2.pq", "day=ü/s.d.pq", "s.a.2.pq", "day=ü", "nowhere/s.a.1.pq", "z/y"]
    assert storage.sizes(requested) == {"s.b.2.pq": 2, "day=ü/s.d.pq": 4}
    assert storage.sizes([]) == {}
