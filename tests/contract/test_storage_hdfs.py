"""Specific to HDFS: permissions, quotas, lost answers, abandoned files, the user."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hdfs_native import Client

from penstock.errors import OutcomeUnknownError, TransientError, UserError
from penstock.storage import NotFoundError, Storage, open_storage
from tests.support.hdfs import HOME, HdfsCluster, wire_to

pytestmark = pytest.mark.hdfs

AT_ONCE = {"dfs.client.failover.max.attempts": "1", "dfs.client.failover.sleep.base.millis": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """In HDFS, of the test's own."""
    return f"{HOME}/{tmp_path.name}"


@pytest.fixture
def root(hdfs: HdfsCluster, folder: str) -> Storage:
    return open_storage(f"{hdfs.address}{folder}", {})


def paths(storage: Storage, prefix: str = "") -> list[str]:
    return sorted(entry.path for entry in storage.list(prefix))


def everything_in(hdfs: HdfsCluster, folder: str) -> list[str]:
    """The names as HDFS itself lists them, hidden ones too."""
    status = Client(hdfs.address, {}).list_status(folder, True)
    return sorted(item.path.removeprefix(f"{folder}/") for item in status if not item.isdir)


def test_a_storage_can_be_pickled(root: Storage) -> None:
    root.put("x", b"1")
    assert pickle.loads(pickle.dumps(root)).read("x") == b"1"


def test_a_rename_takes_the_source_away(root: Storage) -> None:
    root.put("a", b"1")
    assert root.rename_if_absent("a", "deep/er/b")
    assert paths(root) == ["deep/er/b"]


def test_a_folder_is_not_an_object(root: Storage) -> None:
    root.put("a/b", b"1")
    assert not root.exists("a")
    assert paths(root, "a/b") == []
    with pytest.raises(NotFoundError):
        root.size_bytes("a")
    root.put("c", b"1")
    with pytest.raises(UserError):
        root.put("c/below a file", b"1")


def test_temporary_files_are_deleted_after_a_race(hdfs: HdfsCluster, folder: str, root: Storage) -> None:
    root.put("a", b"1")
    root.put("a", b"2")
    assert root.put_if_absent("b", b"1")
    assert not root.put_if_absent("b", b"2")
    assert everything_in(hdfs, folder) == ["a", "b"]


def test_temporary_files_of_a_killed_process_are_not_listed(hdfs: HdfsCluster, folder: str, root: Storage) -> None:
    aside = f"log/.00000000000000000007.json.{'0a' * 16}.tmp"
    Client(hdfs.address, {}).create(f"{folder}/{aside}").close()
    root.put("log/.of another process.tmp", b"")
    assert everything_in(hdfs, folder) == [aside, "log/.of another process.tmp"]
    assert paths(root) == ["log/.of another process.tmp"]


def test_an_abandoned_writer_leaves_no_file(hdfs: HdfsCluster, folder: str, root: Storage) -> None:
    writer = root.open_writer("day=1/s.x.pq")
    writer.write(b"1" * 300_000)
    assert paths(root) == ["day=1/s.x.pq"], "a half-written file is listed, so that vacuum finds what a crash left"
    writer.abandon()
    del writer
    assert everything_in(hdfs, folder) == []


def test_a_completed_file_outlives_a_late_abandon(root: Storage) -> None:
    writer = root.open_writer("x")
    writer.write(b"1")
    writer.close()
    writer.abandon()
    assert root.read("x") == b"1"


def test_a_folder_without_permission_is_a_user_error(hdfs: HdfsCluster, folder: str, root: Storage) -> None:
    root.put("x", b"1")
    hdfs.shell("-mkdir", f"{folder}/shut")
    hdfs.shell("-chmod", "000", f"{folder}/shut")
    acts: tuple[Callable[[], object], ...] = (
        lambda: root.put("shut/y", b"1"),
        lambda: root.put_if_absent("shut/y", b"1"),
        lambda: root.open_writer("shut/y"),
        lambda: root.rename_if_absent("x", "shut/day/y"),
        lambda: root.exists("shut/y"),
        lambda: paths(root),
    )
    for act in acts:
        with pytest.raises(UserError) as caught:
            act()
        assert "permission denied" in caught.value.primary and "/shut" in caught.value.primary
        assert caught.value.hint and not isinstance(caught.value, NotFoundError)
    assert root.read("x") == b"1"


def test_an_exhausted_quota_is_a_transient_error_with_a_clear_message(
    hdfs: HdfsCluster, folder: str, root: Storage
) -> None:
    root.put("x", b"1")
    hdfs.shell("-mkdir", "-p", f"{folder}/no-bytes", f"{folder}/no-names")
    hdfs.shell("-chmod", "777", f"{folder}/no-bytes", f"{folder}/no-names")
    hdfs.admin("-setSpaceQuota", "0", f"{folder}/no-bytes")
    hdfs.admin("-setQuota", "1", f"{folder}/no-names")
    for place in ("no-bytes", "no-names"):
        for act in (root.put, root.put_if_absent, lambda path, _: root.rename_if_absent("x", path)):
            with pytest.raises(TransientError) as caught:
                act(f"{place}/y", b"1")
            assert "no space left" in caught.value.primary
    assert everything_in(hdfs, folder) == ["x"]


def test_closing_a_file_after_a_failed_write_raises(hdfs: HdfsCluster, folder: str, root: Storage) -> None:
    hdfs.shell("-mkdir", "-p", f"{folder}/no-bytes")
    hdfs.shell("-chmod", "777", f"{folder}/no-bytes")
    hdfs.admin("-setSpaceQuota", "0", f"{folder}/no-bytes")
    writer = root.open_writer("no-bytes/x")
    with pytest.raises(TransientError):
        writer.write(b"1")
    with pytest.raises(TransientError):
        writer.close()
    writer.abandon()
    assert everything_in(hdfs, folder) == []


def test_a_cluster_that_cannot_be_reached_is_transient() -> None:
    storage = open_storage("hdfs://127.0.0.1:9/t", AT_ONCE)
    for act in (storage.read, storage.exists, storage.delete, storage.open_writer, lambda _: paths(storage)):
        with pytest.raises(TransientError):
            act("x")
    for put in (storage.put, storage.put_if_absent):
        with pytest.raises(TransientError):
            put("x", b"1")


@pytest.mark.parametrize("attempts", ["1", "5"])
def test_a_conditional_put_whose_response_was_lost_has_an_unknown_outcome_until_read_back(
    hdfs: HdfsCluster, folder: str, attempts: str
) -> None:
    with wire_to(hdfs) as wire:
        options = {"dfs.client.failover.max.attempts": attempts}
        storage = open_storage(f"hdfs://127.0.0.1:{wire.port}{folder}", options)
        wire.cut_after = b"rename2"
        with pytest.raises(OutcomeUnknownError):
            storage.put_if_absent("log/1", b"ours")
        assert wire.cuts == 1
        assert not storage.put_if_absent("log/1", b"ours again")
        assert storage.read("log/1") == b"ours"
    assert everything_in(hdfs, folder) == ["log/1"]


@pytest.mark.parametrize("attempts", ["1", "5"])
def test_a_rename_whose_response_was_lost_can_be_read_back(hdfs: HdfsCluster, folder: str, attempts: str) -> None:
    with wire_to(hdfs) as wire:
        options = {"dfs.client.failover.max.attempts": attempts}
        storage = open_storage(f"hdfs://127.0.0.1:{wire.port}{folder}", options)
        storage.put("a", b"1")
        wire.cut_after = b"rename2"
        # If the library repeats the request itself, the source no longer exists.
        with pytest.raises((OutcomeUnknownError, NotFoundError)):
            storage.rename_if_absent("a", "b")
        assert wire.cuts == 1
        assert paths(storage) == ["b"]


def test_the_user_is_the_one_of_the_environment(hdfs: HdfsCluster, folder: str) -> None:
    program = 'import sys; from penstock.storage import open_storage; open_storage(sys.argv[1], {}).put("x", b"1")'
    command = [sys.executable, "-c", program, f"{hdfs.address}{folder}"]
    environment = {**os.environ, "HADOOP_USER_NAME": "alice"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180, env=environment)
    assert done.returncode == 0, done.stderr
    assert Client(hdfs.address, {}).get_file_info(f"{folder}/x").owner == "alice"
