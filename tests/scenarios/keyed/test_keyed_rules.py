"""RULES K1 to K4, each with the race that it prevents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.engine.compaction import EFFORT
from penstock.engine.replay import ReplayReport, replay
from penstock.engine.round import Rounds
from penstock.environment import Environment
from penstock.errors import TransientError, UserError
from penstock.flow.write.names import content_of
from penstock.job.spec import KafkaLogSpec, job_of
from penstock.lake.delta.table import DeltaLog
from penstock.logs.log import Partition
from penstock.logs.registry import LOGS
from penstock.tables.keyed.files import commits_key
from penstock.tables.keyed.layout import OFFSET_BITS
from penstock.tables.keyed.merger import Merge
from penstock.tables.keyed.merging.chunks import ChunkStore
from penstock.tables.keyed.spec import LAYOUT_PROPERTY, KeyedSpec, encode_layout
from penstock.tables.kind import CompactRequest, Loading, SaveMode
from penstock.tables.registry import kind_of
from tests.scenarios.local_spark import local_session
from tests.support.keyed_tables import ONE, ZERO, Keyed, finish, row
from tests.support.pipes import CrashError, crash_at

TWO = Partition("events", "id-1", 2)


def once_at(step: str, act: Callable[[], Any]) -> Environment:
    """Calls a function when the step is reached for the first time."""
    done: list[str] = []

    def at_step(reached: str) -> None:
        if reached == step and not done:
            done.append(reached)
            act()

    return Environment(at_step=at_step)


def buckets_run(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The buckets of every merge job that runs from now on."""
    merged_buckets: list[list[int]] = []
    run = Merge._run

    def noting(self: Merge, plans: Any) -> Any:
        merged_buckets.append([plan.bucket for plan in plans])
        return run(self, plans)

    monkeypatch.setattr(Merge, "_run", noting)
    return merged_buckets


# K1


def test_k1_the_loser_of_a_race_merges_only_the_buckets_that_the_winner_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Keyed(tmp_path, "partition_keys: [device], row_keys: [number], sequence: seq, buckets: 8")
    devices = [f"d{number}" for number in range(40)]
    table.put(*(row(1, 0, device, seq=1) for device in devices))
    rival = table.open(None, ONE)
    table.put(row(1, 5, "d7", seq=3), to=ONE)
    merged_buckets = buckets_run(monkeypatch)
    table.run(once_at("merged", lambda: finish(rival)), ZERO)
    own, others, again = merged_buckets
    assert len(own) > 4 and len(others) == 1 and again == others
    assert table.values() == {**{(device, 1): 0 for device in devices}, ("d7", 1): 5}
    assert table.totals(ZERO) == (40, 39, 0, 1)


def test_k1_a_commit_that_changes_no_file_still_makes_the_other_merge_again(tmp_path: Path) -> None:
    """A delete of an absent row writes only a tombstone: an older insert of the key must see it."""
    table = Keyed(tmp_path, "row_keys: [number], sequence: seq, delete: gone")
    table.put(row(1, 10, seq=1))
    table.put(row(1, None, gone=True, seq=2), to=ONE)
    rival = table.open(None, ONE)
    table.run(once_at("merged", lambda: finish(rival)), ZERO)
    assert table.values() == {}
    assert table.verified().ok


def test_k1_every_commit_counts_in_the_buckets_that_it_touches(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "partition_keys: [device], row_keys: [number], buckets: 1")
    for number in range(3):
        table.put(row(number, 0))
        table.run()
    assert table.table().transaction(commits_key("keyed", 0)) == 3
    kind_of(table.job).compact(table.job, CompactRequest(), Environment(), None)
    assert table.table().transaction(commits_key("keyed", 0)) == 4


def raced(table: Keyed, monkeypatch: pytest.MonkeyPatch) -> tuple[Rounds[Any], list[list[int]]]:
    """Two processes with the same keys in their partitions, of which the second commits while the first is merging."""
    for part in (ZERO, ONE):
        table.put(*(row(number, part.number, f"d{number % 7}") for number in range(60)), to=part)
    rival = table.open(None, ONE)
    merged_buckets = buckets_run(monkeypatch)
    table.run(once_at("merged", lambda: finish(rival)), ZERO)
    return rival, merged_buckets


def test_k1_a_lost_race_repeats_the_merge_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Keyed(tmp_path, "partition_keys: [device], row_keys: [kafka_partition, number], buckets: 4")
    _, merged_buckets = raced(table, monkeypatch)
    assert len(merged_buckets) == 3 and merged_buckets[2] == merged_buckets[1]
    assert len(pl.read_delta(table.path)) == 120


# K2


def test_k2_an_older_update_does_not_restore_a_deleted_row(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], sequence: seq, delete: gone")
    table.put(row(1, 10, seq=1), row(1, None, gone=True, seq=5))
    table.run()
    table.put(row(1, 11, seq=4), to=ONE)
    table.run()
    assert table.values() == {}
    assert table.totals(ONE) == (1, 0, 0, 1)
    table.put(row(1, 12, seq=6), to=ONE)
    table.run()
    assert table.values() == {("a", 1): 12}


def test_k2_tombstones_are_committed_before_the_delete(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], delete: gone")
    table.put(row(1, 10))
    table.run()
    table.put(row(1, None, gone=True))
    counts: list[tuple[int, int]] = []

    def look() -> None:
        counts.append((len(pl.read_delta(f"{table.path}_tombstones")), len(table.rows())))

    table.run(once_at("tombstones_written", look))
    assert counts == [(1, 1)]
    assert table.rows() == []


def test_k2_a_replayed_record_is_as_old_as_its_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Keyed(tmp_path, "row_keys: [number], delete: gone", on="new_column: quarantine")
    table.put(row(1, 10, extra=1), row(2, 20, extra=1), row(3, 30, extra=1), row(1, 11), row(2, None, gone=True))
    table.run()
    assert table.values() == {("a", 1): 11}
    monkeypatch.setitem(LOGS, KafkaLogSpec, table.log.view)
    fixed = Keyed(tmp_path, table.keyed, on="new_column: ignore", log=table.log)
    assert replay(fixed.job, spark=local_session()) == ReplayReport(runs=1, replayed=3)
    assert table.values() == {("a", 1): 11, ("a", 3): 30}
    assert fixed.verified().ok
    assert replay(fixed.job, spark=local_session()) == ReplayReport()


def test_k2_records_of_a_recreated_topic_are_newer_than_all_before(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number]", on="recreated: restart")
    table.put(*(row(1, number) for number in range(10)))
    table.run()
    table.log.recreate("events", "id-2")
    recreated = Partition("events", "id-2", 0)
    table.put(row(1, 100), to=recreated)
    table.run()
    assert table.values() == {("a", 1): 100}
    assert pl.read_delta(table.path)["_sequence"].to_list() == [1 << OFFSET_BITS]


def test_k2_records_of_new_partitions_are_newer_than_earlier_ones_of_old_partitions(tmp_path: Path) -> None:
    """A key moves when partitions are added: unread records in its old partition are older, whatever their offsets."""
    table = Keyed(tmp_path, "row_keys: [number]")
    table.put(row(9, 0))
    table.run()
    table.put(*(row(1, number) for number in range(5)))
    table.put(row(1, 100), to=TWO)
    table.run()
    assert table.values()["a", 1] == 100
    table.put(row(9, 1))
    table.run()
    assert table.values() == {("a", 1): 100, ("a", 9): 1}
    assert table.verified().ok


def test_k2_a_tombstone_is_removed_after_its_retention(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], delete: gone, tombstone_retention: 1h")
    table.put(row(1, None, gone=True))
    table.run()
    table.put(row(2, None, gone=True), row(1, None, gone=True))
    table.run()
    kind = kind_of(table.job)
    kind.compact(table.job, CompactRequest(), Environment(), None)
    assert len(pl.read_delta(f"{table.path}_tombstones")) == 2
    late = Environment()
    now = late.now
    kind.compact(table.job, CompactRequest(), Environment(now=lambda: now() + 7200), None)
    assert len(pl.read_delta(f"{table.path}_tombstones")) == 0


def test_k2_tombstones_still_apply_after_a_compaction(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], sequence: seq, delete: gone, buckets: 1")
    for number in range(30):
        table.put(row(number % 25, None, gone=True, seq=10 + number), row(100, number, seq=number))
        table.run()
    kind_of(table.job).compact(table.job, CompactRequest(effort=EFFORT), Environment(), None)
    assert len(DeltaTable(f"{table.path}_tombstones").file_uris()) == 1
    assert len(pl.read_delta(f"{table.path}_tombstones")) == 25
    table.put(*(row(number, 1, seq=9) for number in range(25)), to=ONE)
    table.run()
    assert table.values() == {("a", 100): 29}
    table.put(row(3, 5, seq=37), row(4, 6, seq=40), to=ONE)
    table.run()
    # The newest delete of 3 has the sequence 38, that of 4 has 39.
    assert table.values() == {("a", 4): 6, ("a", 100): 29}
    assert table.verified().ok


def test_k2_a_crash_after_the_compaction_of_tombstones_loses_none(tmp_path: Path) -> None:
    """The process dies between the commit of the tombstones and that of the deletes; the next one does both again."""
    table = Keyed(tmp_path, "row_keys: [number], sequence: seq, delete: gone, buckets: 1")
    table.put(row(8, 1, seq=1))
    for number in range(8):
        table.put(row(number, None, gone=True, seq=5))
        table.run()
    table.put(row(8, None, gone=True, seq=5))
    with pytest.raises(CrashError):
        table.run(Environment(at_step=crash_at("tombstones_written")))
    assert table.values() == {("a", 8): 1}
    table.put(*(row(number, 2, seq=4) for number in range(9)), to=ONE)
    table.run(None, ONE)
    assert table.values() == {("a", 8): 1}
    table.run()
    assert table.values() == {} and table.verified().ok


def test_k2_two_processes_that_compact_the_same_tombstones_lose_none(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], sequence: seq, delete: gone, buckets: 1")
    for number in range(8):
        table.put(row(number, None, gone=True, seq=5))
        table.run()
    table.put(row(8, None, gone=True, seq=5))
    table.put(row(9, None, gone=True, seq=5), to=ONE)
    rival = table.open(None, ONE)
    table.run(once_at("merged", lambda: finish(rival)), ZERO)
    assert set(pl.read_delta(f"{table.path}_tombstones")["key0"].to_list()) == set(range(10))
    table.put(*(row(number, 2, seq=4) for number in range(10)), to=ONE)
    table.run()
    assert table.values() == {} and table.verified().ok


# K3


def test_k3_a_compaction_between_merge_and_commit_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], buckets: 1")
    for number in range(4):
        table.put(row(number, number))
        table.run()
    table.put(row(2, 22))
    compact = lambda: kind_of(table.job).compact(table.job, CompactRequest(), Environment(), None)  # noqa: E731
    table.run(once_at("checked", compact))
    assert table.values() == {("a", 0): 0, ("a", 1): 1, ("a", 2): 22, ("a", 3): 3}
    assert table.verified().ok


def test_k3_a_compaction_drops_groups_that_a_batch_has_changed(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], buckets: 1")
    for number in range(3):
        table.put(row(number, number))
        table.run()
    table.put(row(1, 11))
    environment = once_at("compact_checked", lambda: table.run())
    report = kind_of(table.job).compact(table.job, CompactRequest(), environment, None)
    assert (report.files_removed, report.dropped) == (0, 1)
    assert table.values() == {("a", 0): 0, ("a", 1): 11, ("a", 2): 2}
    assert table.verified().ok


# K4


def test_k4_existing_chunks_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Keyed(tmp_path, "row_keys: [number], buckets: 2, chunk_rows: 10", batch=100)
    table.put(*(row(number, number) for number in range(60)))
    table.run()
    before = table.files()
    read: list[str] = []
    monkeypatch.setattr(ChunkStore, "read", lambda self, path, columns=None: read.append(path))
    again = Keyed(tmp_path, table.keyed, name="again", log=table.log, batch=100)
    again.run()
    assert (again.files(), read) == (before, [])
    assert again.totals() == (60, 0, 0, 60)


def test_k4_a_chunk_with_another_value_or_sequence_is_merged_row_by_row(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], sequence: seq, buckets: 1")
    table.put(*(row(number, number, seq=1) for number in range(10)), to=ONE)
    table.run()
    table.put(*(row(number, number, seq=2 if number == 3 else 1) for number in range(10)))
    table.run()
    # Nine have the sequence and the offset of existing rows, and a lower partition.
    assert table.totals() == (10, 1, 0, 9)


def test_k4_a_replay_in_other_batches_is_merged_row_by_row(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], buckets: 2, chunk_rows: 10", batch=100)
    table.put(*(row(number % 40, number) for number in range(60)))
    table.run()
    before, files = table.values(), table.files()
    again = Keyed(tmp_path, table.keyed, name="again", log=table.log, batch=7)
    again.run()
    assert (again.values(), again.files()) == (before, files)
    assert again.totals()[1] == 0


def test_k4_file_names_hold_rows_and_digest_and_statistics_hold_keys(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], buckets: 1, chunk_rows: 4")
    table.put(*(row(number, number) for number in (5, 1, 9, 3, 7, 2)))
    table.run()
    actions = pa.table(DeltaTable(table.path).get_add_actions(flatten=True)).to_pylist()
    result = {}
    for action in actions:
        content = content_of(action["path"])
        result[action["min.number"], action["max.number"]] = content and content.rows
    assert result == {(1, 5): 4, (7, 9): 2}


def test_a_change_of_keys_is_refused(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number]")
    table.put(row(1, 1))
    table.run()
    before = table.table().version
    for keyed in ("row_keys: [device]", "row_keys: [number], buckets: 4", "row_keys: [number], sequence: seq"):
        with pytest.raises(UserError, match="keys"):
            Keyed(tmp_path, keyed, schema=f"{table.schema}, more: long", log=table.log).open()
    assert table.table().version == before


def test_a_table_of_an_earlier_format_is_refused_and_not_changed(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number]")
    table.put(row(1, 1))
    table.run()
    earlier = encode_layout(job_of(table.job, KeyedSpec).table.layout).replace('"version":4', '"version":3')
    DeltaTable(table.path).alter.set_table_properties({LAYOUT_PROPERTY: earlier}, raise_if_not_exists=False)
    before = table.table().version
    with pytest.raises(UserError, match=LAYOUT_PROPERTY):
        table.open()
    assert table.table().version == before


def test_positions_of_all_partitions_move_together_or_not_at_all(tmp_path: Path) -> None:
    table = Keyed(tmp_path)
    table.put(row(1, 1))
    table.put(row(1, 2, "b"), to=ONE)
    table.run()
    state = table.table().state([ZERO, ONE])
    assert (state.of(ZERO).position, state.of(ONE).position) == (1, 1)


# C2


def test_c2_a_commit_whose_response_is_lost_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Keyed(tmp_path, "row_keys: [number], delete: gone")
    table.put(row(1, 1), row(2, 2))
    table.run()
    lose_answers(monkeypatch)
    table.put(row(1, 11), row(2, None, gone=True), row(3, 3))
    table.run()
    assert table.values() == {("a", 1): 11, ("a", 3): 3}
    assert table.totals() == (5, 5, 0, 0)
    assert table.verified().ok


def test_c2_a_load_whose_response_is_lost_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Keyed(tmp_path, "row_keys: [number]")
    pl.DataFrame({"number": [1, 2], "value": [1, 2]}).write_parquet(tmp_path / "rows.parquet")
    kind = kind_of(table.job)
    assert isinstance(kind, Loading)
    paths = [str(tmp_path / "rows.parquet")]
    kind.load(table.job, paths, SaveMode.OVERWRITE, local_session(), Environment())
    before = table.table().version
    lose_answers(monkeypatch)
    kind.load(table.job, paths, SaveMode.OVERWRITE, local_session(), Environment())
    assert table.table().version == before + 1
    assert sorted(item["value"] for item in table.rows()) == [1, 2]


def lose_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commit with files lands, and its process gets an error."""
    commit = DeltaLog.commit_actions
    lost: list[int] = []

    def losing(self: DeltaLog, actions: Any, transactions: Any, metadata: Any) -> None:
        commit(self, actions, transactions, metadata)
        if actions and not lost and not self.spec.path.endswith("_tombstones"):
            lost.append(self.version)
            raise TransientError("the connection was closed")

    monkeypatch.setattr(DeltaLog, "commit_actions", losing)
