"""One chain of entries (RULES L1 to L3), in memory, in a local folder and on a real S3 server."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from msgspec import structs

from penstock.environment import Environment, new_batch_id
from penstock.errors import InvariantError, TransientError
from penstock.failpoints import Failpoint
from penstock.lake.proposal import FencePart
from penstock.lake.storage import Storage
from penstock.logs.log import Partition
from penstock.tables.export.ledger.chain import SNAPSHOT_EVERY
from penstock.tables.export.ledger.codec import decode_entry, encode_entry
from penstock.tables.export.ledger.entry import Entry, EntryKind, FenceRecord
from penstock.tables.export.ledger.fold import apply
from penstock.tables.export.ledger.names import Places
from penstock.tables.export.ledger.state import LedgerState
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
    staged_in,
    visible,
)
from tests.watched_storage import WatchedStorage

AB = ("A", "B")
OTHER = Partition("events", "life-1", 1)
PLACES = Places("garmadon")
MIXED = [Event(offset, "AB"[offset % 2]) for offset in range(200)]


def reader(table: ExportTable, token: int = 1, partition: Partition = EVENTS) -> Reader:
    return Reader(MIXED, AB, partition, token, staged_in(table))


def failing_at(step: str, visit: int = 1) -> Environment:
    """An environment in which the process ends at a step; what it has done by then stays."""
    return Environment(sleep=lambda _: None, reach=Failpoint(step, "error", visit).reach)


def entries(storage: Storage) -> list[Entry]:
    paths = sorted(each.path for each in storage.list(PLACES.entries))
    return [decode_entry(storage.read(path)) for path in paths]


def folded(storage: Storage) -> LedgerState:
    """The whole chain from its first entry, without any snapshot."""
    state = LedgerState()
    for entry in entries(storage):
        state = apply(state, entry)
    return state


# L1: one chain, and nobody goes on before the last entry is complete


@pytest.mark.parametrize("visit", [1, 2])
def test_the_renames_of_a_dead_process_are_finished_before_the_next_entry(storage: Storage, visit: int) -> None:
    begun(open_table(storage, AB))
    dying = open_table(storage, AB, failing_at("renaming", visit))
    part = reader(dying).main(0, 10)
    with pytest.raises(TransientError):
        land(dying, part)
    assert sum(visible(storage).values()) == 5 * (visit - 1), "one file of five rows for each rename that was done"

    def watch(act: str, path: str) -> None:
        if act == "put_if_absent" and path == PLACES.entry(4):
            seen_at_entry.append(visible(storage))

    seen_at_entry: list[object] = []
    other = open_table(WatchedStorage(storage, watch), AB)
    landed(other, reader(other).main(10, 20))
    assert seen_at_entry == [expected(MIXED[:10])], "all of entry 3 was in place before anybody asked for 4"
    assert visible(storage) == expected(MIXED[:20])


def test_an_entry_of_another_process_is_finished_and_ours_follows_with_the_same_files(storage: Storage) -> None:
    """Two processes, a partition each, on one root; the other lands just as we ask for our number."""
    theirs = begun(begun(open_table(storage, AB)), OTHER)

    def watch(act: str, path: str) -> None:
        if act == "put_if_absent" and path == PLACES.entry(4):
            ours_storage.watch = None
            landed(theirs, reader(theirs, partition=OTHER).main(0, 10))

    ours_storage = WatchedStorage(storage, watch)
    ours = open_table(ours_storage, AB)
    part = reader(ours).main(0, 10)
    outcome = land(ours, part)
    assert (outcome.version, outcome.refused) == (5, ())
    assert [each.path for each in part.files] == [each.source for each in entries(storage)[-1].renames]
    assert visible(storage) == expected(MIXED[:10]) + expected(MIXED[:10], OTHER)


def test_a_rival_for_the_same_partition_lands_first_and_ours_is_refused(storage: Storage) -> None:
    theirs = begun(open_table(storage, AB))

    def watch(act: str, path: str) -> None:
        if act == "put_if_absent" and path == PLACES.entry(3):
            ours_storage.watch = None
            landed(theirs, reader(theirs, token=2).main(0, 30))

    ours_storage = WatchedStorage(storage, watch)
    ours = open_table(ours_storage, AB)
    outcome = land(ours, reader(ours).main(0, 10))
    assert outcome.version is None
    assert [each.partition for each in outcome.refused] == [EVENTS]
    assert visible(storage) == expected(MIXED[:30])


def test_two_processes_in_turn_make_one_chain(storage: Storage) -> None:
    ours, theirs = begun(begun(open_table(storage, AB)), OTHER), open_table(storage, AB)
    for start in range(0, 40, 10):
        landed(ours, reader(ours).main(start, start + 10))
        landed(theirs, reader(theirs, partition=OTHER).main(start, start + 10))
    assert [each.number for each in entries(storage)] == list(range(1, 12))
    assert ours.state() == theirs.state() == folded(storage)
    assert visible(storage) == expected(MIXED[:40]) + expected(MIXED[:40], OTHER)


def test_a_process_that_died_with_its_entry_written_has_landed(storage: Storage) -> None:
    """RULES C2: the next process finds it done, and the same slice is refused."""
    begun(open_table(storage, AB))
    dying = open_table(storage, AB, failing_at("entry_written"))
    with pytest.raises(TransientError):
        land(dying, reader(dying).main(0, 10))
    assert not visible(storage)
    again = open_table(storage, AB)
    assert land(again, reader(again).main(0, 10)).refused
    assert again.state().global_position(EVENTS) == 10
    assert visible(storage) == expected(MIXED[:10])


def test_a_process_that_died_before_its_entry_has_not_landed(storage: Storage) -> None:
    begun(open_table(storage, AB))
    dying = open_table(storage, AB, failing_at("checked"))
    with pytest.raises(TransientError):
        land(dying, reader(dying).main(0, 10))
    again = open_table(storage, AB)
    assert again.state().global_position(EVENTS) == 0
    landed(again, reader(again).main(0, 10))
    assert visible(storage) == expected(MIXED[:10])


def test_a_lost_answer_does_not_double_the_entry(storage: Storage) -> None:
    watched = WatchedStorage(storage)
    table = begun(open_table(watched, AB))
    watched.answers_lost = {PLACES.entry(3)}
    outcome = land(table, reader(table).main(0, 10))
    assert (outcome.version, outcome.refused) == (3, ())
    assert len(entries(storage)) == 3
    assert table.state() == folded(storage)


# L2: names are never freed, snapshots fold complete entries, and start-up is cheap


def grown(storage: Storage, entries_max: int) -> ExportTable:
    """A chain of so many entries, a slice of one offset each, by an owner with token 2."""
    table = begun(open_table(storage, AB))
    landed(table, FencePart(EVENTS, 2))
    log = reader(table, token=2)
    for start in range(entries_max - 3):
        landed(table, log.main(start, start + 1))
    return table


def test_a_zombie_is_refused_after_its_number_was_folded_into_a_snapshot(storage: Storage) -> None:
    zombie = begun(open_table(storage, AB))
    part = reader(zombie).main(0, 10)
    old = Entry(zombie.state().number + 1, EntryKind.FENCE, "garmadon", "old", 1.0, fences=(FenceRecord(EVENTS, 1),))
    owner = open_table(storage, AB)
    landed(owner, FencePart(EVENTS, 2))
    for start in range(SNAPSHOT_EVERY + 1):
        landed(owner, reader(owner, token=2).main(start, start + 1))
    assert list(storage.list(PLACES.snapshots))
    assert not zombie.ledger.append(old), "its own old number is taken for ever"
    assert [each.partition for each in land(zombie, part).refused] == [EVENTS]
    assert visible(storage) == expected(MIXED[: SNAPSHOT_EVERY + 1])


def test_start_up_reads_a_snapshot_and_the_few_entries_behind_it(storage: Storage) -> None:
    count = 2 * SNAPSHOT_EVERY + 5
    table = grown(storage, count)
    watched = WatchedStorage(storage)
    again = open_table(watched, AB)
    assert again.state() == table.state() == folded(storage)
    # The hint, the snapshot of 39, the entries 40 to 45, and the one that is not there yet.
    assert len(watched.told) == 9
    assert {each.rsplit("/", 2)[-2] for each in watched.acts("read")} == {"garmadon", "snapshots", "ledger"}


def test_without_the_hint_the_newest_snapshot_is_found_by_its_name(storage: Storage) -> None:
    table = grown(storage, 2 * SNAPSHOT_EVERY + 1)
    storage.delete(PLACES.last_snapshot)
    watched = WatchedStorage(storage)
    assert open_table(watched, AB).state() == table.state()
    assert len(watched.acts("read")) == 5, "the hint in vain, a snapshot, two entries, and none behind"


def test_a_hint_to_a_snapshot_that_is_not_there_is_passed_over(storage: Storage) -> None:
    table = grown(storage, SNAPSHOT_EVERY + 2)
    storage.put(PLACES.last_snapshot, b'{"number": 999}')
    assert open_table(storage, AB).state() == table.state()
    for entry in [*storage.list(PLACES.snapshots)]:
        storage.delete(entry.path)
    assert open_table(storage, AB).state() == table.state()
    storage.delete(PLACES.entry(1))
    with pytest.raises(InvariantError):
        open_table(storage, AB).state()


def test_without_any_snapshot_the_chain_alone_tells_everything(storage: Storage) -> None:
    table = grown(storage, SNAPSHOT_EVERY + 2)
    for entry in [*storage.list(PLACES.snapshots)]:
        storage.delete(entry.path)
    storage.delete(PLACES.last_snapshot)
    assert open_table(storage, AB).state() == table.state()


@pytest.mark.parametrize("step", ["renamed", "snapshot_written"])
def test_a_death_around_the_snapshot_costs_nothing_but_reading(storage: Storage, step: str) -> None:
    grown(storage, SNAPSHOT_EVERY - 1)
    dying = open_table(storage, AB, failing_at(step))
    at = dying.state().of(EVENTS).position
    assert at is not None
    with pytest.raises(TransientError):
        land(dying, reader(dying, token=2).main(at, at + 1))
    again = open_table(storage, AB)
    assert again.state().global_position(EVENTS) == at + 1
    landed(again, reader(again, token=2).main(at + 1, at + 2))
    assert again.state() == folded(storage)
    assert visible(storage) == expected(MIXED[: at + 2])


def test_a_snapshot_never_holds_an_entry_that_is_not_complete(storage: Storage) -> None:
    table = grown(storage, 2 * SNAPSHOT_EVERY)
    numbers = sorted(int(Path(each.path).stem) for each in storage.list(PLACES.snapshots))
    assert numbers == [SNAPSHOT_EVERY - 1, 2 * SNAPSHOT_EVERY - 1]
    assert max(numbers) < table.state().number, "whoever wrote the next entry had finished it"


# L3: all or nothing


def test_of_many_who_want_one_number_one_gets_it_and_nobody_reads_half_an_entry(storage: Storage) -> None:
    begun(open_table(storage, AB))
    tables = [open_table(storage, AB) for _ in range(8)]
    numbered = [(each, each.state().number + 1) for each in tables]
    line = threading.Barrier(len(tables))
    won: list[int] = []
    seen: list[Entry | None] = []

    def run(index: int) -> None:
        table, number = numbered[index]
        entry = Entry(number, EntryKind.FENCE, "garmadon", f"batch-{index}", 1.0, fences=(FenceRecord(EVENTS, index),))
        entry = structs.replace(entry, removes=tuple(f"A/day=2026-03-01/{each}.0.parquet" for each in range(2000)))
        line.wait()
        if table.ledger.append(entry):
            won.append(index)
        seen.append(table.ledger.read(number))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(tables))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = won
    stored = decode_entry(storage.read(PLACES.entry(3)))
    assert stored.batch_id == f"batch-{winner}"
    assert seen == [stored] * len(tables)
    assert encode_entry(stored) == storage.read(PLACES.entry(3))


def test_a_batch_id_is_found_in_the_entry_that_landed(storage: Storage) -> None:
    table = begun(open_table(storage, AB))
    batch_id = new_batch_id()
    outcome = table.land(batch_id, (reader(table).main(0, 10),))
    assert outcome.version is not None
    assert [each.batch_id for each in table.ledger.last(1)] == [batch_id]
