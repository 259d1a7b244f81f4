"""Types that fall behind alone and catch up, and roots that serve several (RULES L4, L5; S5, S7), on every storage."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import UserError
from penstock.lake.proposal import FencePart
from penstock.lake.storage import Storage, open_storage
from penstock.logs.log import Partition
from penstock.logs.memory import MemoryLog
from penstock.tables.export.export import Export
from penstock.tables.export.ledger.names import Places
from penstock.tables.export.ledger.state import Cause
from penstock.tables.export.table import ExportTable
from tests.routed_parts import (
    EVENTS,
    Event,
    Reader,
    begun,
    expected,
    land,
    landed,
    open_table,
    run_of,
    staged_in,
    visible,
)
from tests.watched_storage import WatchedStorage

AB = ("A", "B")
MIXED = [Event(offset, "AB"[offset % 2]) for offset in range(200)]


def reader(table: ExportTable, token: int = 1, partition: Partition = EVENTS) -> Reader:
    return Reader(MIXED, AB, partition, token, staged_in(table))


# L4: a type that cannot be written falls behind alone


class Closable:
    """A storage in which the folder of one type can be closed to new names and opened again."""

    def __init__(self, storage: Storage) -> None:
        self.closed: set[str] = set()
        self.storage = WatchedStorage(storage, self._watch)

    def _watch(self, act: str, path: str) -> None:
        if act in ("put", "rename") and path.partition("/")[0] in self.closed:
            raise UserError(f"permission denied: {path}")


def test_a_probe_tells_which_type_cannot_be_written_and_leaves_nothing(storage: Storage) -> None:
    door = Closable(storage)
    table = begun(open_table(door.storage, AB))
    door.closed = {"A"}
    assert table.probe("A", ["2026-03-01"]) is not None
    assert table.probe("B", ["2026-03-01", "2026-03-02"]) is None
    part = reader(table).main(0, 10).without("A")
    state = landed(table, part)
    assert (state.position_of(EVENTS, "A"), state.position_of(EVENTS, "B")) == (0, 10)
    assert state.of(EVENTS).lanes["A"].cause is Cause.FAILING
    assert state.types["A"].outcomes == "0"
    door.closed = set()
    assert table.probe("A", ["2026-03-01"]) is None
    landed(table, reader(table).catch_up({"A": 0}, 10))
    assert table.state().global_position(EVENTS) == 10
    assert visible(storage) == expected(MIXED[:10])
    assert not [each.path for each in storage.list() if "_probe" in each.path]


def test_a_rename_that_fails_after_the_entry_is_carried_on_until_it_works(storage: Storage) -> None:
    door = Closable(storage)
    table = begun(open_table(door.storage, AB))
    landed(table, reader(table).main(0, 10))
    door.closed = {"A"}
    landed(table, reader(table).main(10, 20))
    assert table.failing_types().keys() == {"A"}
    state = landed(table, reader(table).main(20, 30))
    assert [each.start for each in state.pending] == [10, 20]
    assert state.position_of(EVENTS, "A") == 10, "the start of the oldest slice whose file is not in place"
    assert state.position_of(EVENTS, "B") == 30, "the others go on"
    assert state.global_position(EVENTS) == 10
    state = landed(table, reader(table).main(30, 40))
    assert [each.start for each in state.pending] == [10, 20, 30], "carried through the following entries"
    assert visible(storage) == expected(each for each in MIXED[:40] if each.kind == "B" or each.offset < 10)

    restarted = open_table(door.storage, AB)
    assert restarted.complete().position_of(EVENTS, "A") == 10
    door.closed = set()
    state = landed(restarted, reader(restarted).main(40, 50))
    assert state.pending == ()
    assert state.position_of(EVENTS, "A") == state.global_position(EVENTS) == 50
    assert visible(storage) == expected(MIXED[:50])
    assert state.types["A"].outcomes.count("0") >= 3
    assert state.types["B"].outcomes == "11111"


def test_what_another_process_could_put_in_place_is_not_carried_on(storage: Storage) -> None:
    door = Closable(storage)
    table = begun(open_table(door.storage, AB))
    door.closed = {"A"}
    landed(table, reader(table).main(0, 10))
    open_table(storage, AB).complete()
    state = landed(table, reader(table).main(10, 20).without("A"))
    assert state.pending == ()
    assert state.position_of(EVENTS, "A") == 10
    assert visible(storage) == expected(each for each in MIXED[:20] if each.kind == "B" or each.offset < 10)


def test_a_file_of_somebody_else_under_our_name_is_not_taken_for_ours(storage: Storage) -> None:
    table = begun(open_table(storage, AB))
    storage.put("A/day=2026-03-01/events.0.8.parquet", b"not ours")
    landed(table, reader(table).main(0, 10))
    assert "taken" in table.failing_types()["A"]
    state = landed(table, reader(table).main(10, 20))
    assert state.position_of(EVENTS, "A") == 0
    storage.delete("A/day=2026-03-01/events.0.8.parquet")
    landed(table, reader(table).main(20, 30))
    assert visible(storage) == expected(MIXED[:30])


def test_a_type_whose_folder_is_a_plain_file_falls_behind_alone(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), {})
    (tmp_path / "A").write_text("in the way")
    table = begun(open_table(storage, AB))
    assert table.probe("A", ["2026-03-01"]) is not None
    landed(table, reader(table).main(0, 10))
    state = landed(table, reader(table).main(10, 20).without("A"))
    assert (state.position_of(EVENTS, "A"), state.position_of(EVENTS, "B")) == (0, 20)
    (tmp_path / "A").unlink()
    state = landed(table, reader(table).catch_up({"A": 10}, 20))
    assert state.global_position(EVENTS) == 20
    assert visible(storage) == expected(MIXED[:20])


# L5: a catch-up is checked against the type's own position under the partition's token


def lagging(storage: Storage) -> ExportTable:
    """B is at 30, A at 0."""
    table = begun(open_table(storage, AB))
    for start in range(0, 30, 10):
        landed(table, reader(table).main(start, start + 10, {"A": Cause.FAILING}))
    return table


def test_a_catch_up_ends_where_the_others_are_and_the_type_rejoins(storage: Storage) -> None:
    table = lagging(storage)
    log = reader(table)
    assert landed(table, log.catch_up({"A": 0}, 10)).position_of(EVENTS, "A") == 10
    assert land(table, log.catch_up({"A": 0}, 20)).refused, "not from where it was"
    assert land(table, log.catch_up({"A": 10}, 40)).refused, "not beyond the others"
    assert land(table, log.catch_up({"B": 10}, 30)).refused, "B does not lag"
    state = landed(table, log.catch_up({"A": 10}, 30))
    assert state.of(EVENTS).lanes == {}
    landed(table, log.main(30, 40))
    assert visible(storage) == expected(MIXED[:40])


def test_a_catch_up_under_an_old_token_is_refused(storage: Storage) -> None:
    old = lagging(storage)
    late = reader(old, token=1).catch_up({"A": 0}, 30)
    new = open_table(storage, AB)
    landed(new, FencePart(EVENTS, 2))
    assert land(old, late).refused
    landed(new, reader(new, token=2).catch_up({"A": 0}, 30))
    assert land(old, late).refused
    assert visible(storage) == expected(MIXED[:30])


def test_of_two_catch_ups_of_one_type_only_the_first_counts(storage: Storage) -> None:
    one = lagging(storage)
    two = open_table(storage, AB)
    first, second = reader(one).catch_up({"A": 0}, 30), reader(two).catch_up({"A": 0}, 20)
    landed(one, first)
    assert land(two, second).refused
    assert visible(storage) == expected(MIXED[:30])


def test_a_slice_that_was_written_before_its_type_fell_behind_leaves_it_behind(storage: Storage) -> None:
    """The files of A are staged, but its lane comes first: they would be read again with it."""
    table = lagging(storage)
    state = landed(table, reader(table).main(30, 40))
    assert state.position_of(EVENTS, "A") == 0
    landed(table, reader(table).catch_up({"A": 0}, 40))
    assert visible(storage) == expected(MIXED[:40])


def test_an_entry_that_does_not_fit_never_reaches_the_chain(storage: Storage) -> None:
    table = begun(open_table(storage, AB))
    stranger = Reader(run_of("C", 0, 10), ("C",), stage=staged_in(table))
    with pytest.raises(UserError):
        land(table, stranger.main(0, 10))
    assert len(list(storage.list(Places("garmadon").entries))) == 2
    landed(table, reader(table).main(0, 10))


# S5 and S7: several clusters and topics in one root


def test_two_clusters_in_one_root_never_mix(storage: Storage) -> None:
    """The same topic name, partition and offsets in both."""
    tables = {name: begun(open_table(storage, AB, name=f"from-{name}", cluster=name)) for name in ("pa4", "am5")}
    for name, table in tables.items():
        table.claims.claim_names(["events"])
        landed(table, reader(table).main(0, 10 if name == "pa4" else 20))
    assert visible(storage) == expected(MIXED[:10]) + expected(MIXED[:20])
    for name, position in (("pa4", 10), ("am5", 20)):
        again = open_table(storage, AB, name=f"from-{name}", cluster=name)
        assert again.state().global_position(EVENTS) == position
    names = sorted(each.path for each in storage.list("A"))
    assert names == [f"A/day=2026-03-01/{name}" for name in ("am5.events.0.18.parquet", "pa4.events.0.8.parquet")]


def test_a_second_job_on_the_same_topic_is_refused_under_whatever_names(storage: Storage) -> None:
    """Its file names would be free, and readers would see every row twice."""
    first = open_table(storage, AB, name="first")
    first.claims.claim_names(["events"])
    first.claims.claim_topics([EVENTS.topic_id])
    second = open_table(storage, ("B", "C"), name="second", cluster="pa4")
    second.claims.claim_names(["events"])
    with pytest.raises(UserError, match="the job first already writes the type B of the same topic"):
        second.claims.claim_topics([EVENTS.topic_id])
    open_table(storage, ("C",), name="third", cluster="am5").claims.claim_topics([EVENTS.topic_id])
    second.claims.claim_topics(["another-life"])
    open_table(storage, AB, name="first").claims.claim_topics([EVENTS.topic_id])


def test_two_topics_in_one_root_never_mix(storage: Storage) -> None:
    """S7: a position of 500 in one topic says nothing about offset 3 of the other."""
    first, second = Partition("t1", "life-t1", 0), Partition("t2", "life-t2", 0)
    table = begun(begun(open_table(storage, AB), first), second)
    table.claims.claim_names(["t1", "t2"])
    landed(table, reader(table, partition=first).main(0, 50))
    state = landed(table, reader(table, partition=second).main(0, 4))
    assert (state.global_position(first), state.global_position(second)) == (50, 4)
    assert sum(visible(storage).values()) == 54


def test_a_recreated_topic_does_not_meet_the_files_of_its_former_life(storage: Storage) -> None:
    reborn = Partition("events", "life-2", 0)
    table = begun(open_table(storage, AB))
    landed(table, reader(table).main(0, 10))
    begun(table, reborn)
    landed(table, reader(table, partition=reborn).main(0, 10))
    assert visible(storage) == expected(MIXED[:10]) + expected(MIXED[:10])
    assert sorted(each.path for each in storage.list("A")) == [
        "A/day=2026-03-01/events.0.8.parquet",
        "A/day=2026-03-01/events.0~2.8.parquet",
    ]


def test_a_second_job_under_the_same_names_is_refused(storage: Storage) -> None:
    open_table(storage, AB).claims.claim_names(["events"])
    open_table(storage, AB).claims.claim_names(["events"])
    with pytest.raises(UserError) as caught:
        open_table(storage, AB, name="another").claims.claim_names(["events"])
    assert "garmadon" in caught.value.primary
    open_table(storage, AB, name="another", cluster="am5").claims.claim_names(["events"])
    with pytest.raises(UserError):
        open_table(storage, AB, name="third", cluster="am5").claims.claim_names(["other", "events"])


def test_a_process_whose_job_file_got_another_cluster_owns_nothing_once_another_has_begun(tmp_path: Path) -> None:
    """Both were started on an empty root; with files under two names the job would start under neither file."""
    first, second = (open_table(open_storage(str(tmp_path), {}), AB, cluster=name) for name in ("", "x"))
    for table in (first, second):
        table.agree_on_types()
    Export(begun(first, Partition("t1", "life-t1", 0)), MemoryLog()).own([Partition("t1", "life-t1", 0)])
    with pytest.raises(UserError):
        Export(second, MemoryLog()).own([Partition("t2", "life-t2", 0)])
    first.refuse_other_names()


def test_of_two_processes_that_meet_a_new_field_with_different_types_the_second_takes_what_the_first_fixed(
    storage: Storage,
) -> None:
    """It plans its batch again, and a value that does not fit is a bad record."""
    first, second = begun(open_table(storage, AB)), open_table(storage, AB)
    second.agree_on_types()
    first.change_schema("A", pa.schema([("size", pa.int64())]))
    second.change_schema("A", pa.schema([("size", pa.string()), ("price", pa.float64())]))
    fixed = second.state().schema_of("A")
    assert fixed is not None
    assert [(each.name, each.type) for each in fixed][-2:] == [("size", pa.int64()), ("price", pa.float64())]
    assert first.state().schema_of("A") == fixed
