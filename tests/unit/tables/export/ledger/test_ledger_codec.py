"""The wire form of the ledger: every released byte stays readable, and every damaged one has one answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.write.manifest import StagedFile
from penstock.lake.state import Totals
from penstock.logs.log import Partition
from penstock.tables.export.ledger.codec import (
    VERSION,
    UnreadableLedgerError,
    decode_entry,
    decode_state,
    encode_entry,
    encode_state,
)
from penstock.tables.export.ledger.entry import (
    DeferredRecord,
    Entry,
    EntryKind,
    FenceRecord,
    ReplayRecord,
    SliceRecord,
    StartRecord,
    TakenRecord,
    TypeRecord,
    WrittenRecord,
)
from penstock.tables.export.ledger.state import (
    Cause,
    Lane,
    LedgerState,
    Listing,
    Rename,
    Reread,
    RoutedPartition,
    TypeState,
    Unfinished,
)
from penstock.tables.export.spec import TypeStart
from tests.unit.tables.export.ledger.any_entries import entries, states

GOLDEN = Path(__file__).parents[4] / "golden" / "ledger" / "v2"
ZERO, ONE = Partition("events", "kQ2x", 0), Partition("events", "kQ2x", 1)
DAY = "2026-03-01"
STAGED = "_penstock/garmadon/staged"
BAD = StagedFile("events", 0, "s.kQ2x.0.bad.pq", 2, 900, {}, '{"numRecords":2}')
MOVE = Rename(f"{STAGED}/fs/s.1.pq", f"fs/day={DAY}/0.99.parquet", "fs", "kQ2x", 0, 0)
STUCK = Rename(f"{STAGED}/gc/s.2.pq", f"gc/day={DAY}/1.49.parquet", "gc", "kQ2x", 1, 10, rows=7, size_bytes=700)
MERGED = Rename(f"{STAGED}/fs/s.3.pq", f"fs/day={DAY}/compacted~garmadon.6.0.parquet", "fs", waits=True)
RETURNED = Rename(
    f"{STAGED}/gc/r.3.pq",
    f"gc/day={DAY}/replayed~garmadon.9.0.parquet",
    "gc",
    "kQ2x",
    0,
    7,
    rows=3,
    size_bytes=700,
    run=3,
    stats='{"numRecords":3}',
)


def said(number: int, kind: EntryKind, **contents: Any) -> Entry:
    return Entry(number, kind, "garmadon", f"batch-{number}", 1_772_323_200.5, **contents)


RELEASED: dict[EntryKind, Entry] = {
    EntryKind.TYPES: said(
        1,
        EntryKind.TYPES,
        types={"fs": TypeRecord("c2NoZW1h", TypeStart.BEGINNING, "5f0c"), "gc": TypeRecord("")},
        routings={"5f0c": "{}"},
    ),
    EntryKind.START: said(2, EntryKind.START, starts=(StartRecord(ZERO, 0, 1), StartRecord(ONE, 10, 0))),
    EntryKind.FENCE: said(3, EntryKind.FENCE, fences=(FenceRecord(ZERO, 2), FenceRecord(ONE, 7))),
    EntryKind.BATCH: said(
        4,
        EntryKind.BATCH,
        slices=(
            SliceRecord(
                ZERO,
                0,
                100,
                2,
                Totals(read=90, written=80, quarantined=2, filtered=1, skipped=1, holes=7, gap=3, deferred=6),
                1_772_323_100_000,
                {"fs": WrittenRecord(80, 1, 4096, {DAY: 70, "2026-02-28": 10})},
                {"gc": DeferredRecord(6, 41, 600, Cause.FAILING)},
                quarantine=(BAD,),
            ),
        ),
        renames=(MOVE,),
        pending=(STUCK,),
        failures={"gc": 2},
        reopened=((("fs", "2026-02-28"), 1_772_323_000_000),),
        closed=(("gc", "2026-02-27"),),
    ),
    EntryKind.CATCH_UP: said(
        5,
        EntryKind.CATCH_UP,
        slices=(
            SliceRecord(ZERO, 41, 100, 2, Totals(written=6, deferred=-6), taken={"gc": TakenRecord(41, 6)}),
            SliceRecord(ONE, 10, 20, 7, Totals(), taken={}),
        ),
        pending=(STUCK,),
    ),
    EntryKind.IDLE: said(
        6,
        EntryKind.IDLE,
        idle=((ZERO, 1_772_323_200_000), (ONE, 0)),
        pending_marks=(("fs", DAY),),
        dropped=(STUCK,),
        retired=1005,
    ),
    EntryKind.COMPACTION: said(
        7,
        EntryKind.COMPACTION,
        renames=(MERGED,),
        removes=(MOVE.target, f"fs/day={DAY}/1.30.parquet"),
        pending_removes=(f"gc/day={DAY}/0.5.parquet",),
    ),
    EntryKind.REBUILD: said(
        8,
        EntryKind.REBUILD,
        starts=(StartRecord(ZERO, 0, 0),),
        slices=(SliceRecord(ZERO, 0, 100, 0, Totals(read=100, written=100)),),
        types={"fs": TypeRecord("c2NoZW1h")},
    ),
    EntryKind.REPLAY: said(
        9,
        EntryKind.REPLAY,
        renames=(RETURNED,),
        replay=ReplayRecord(3, ((ZERO, ((7, 8), (41, 43))),), {"gc": WrittenRecord(3, 1, 700, {DAY: 3})}),
    ),
}
SNAPSHOT = LedgerState(
    number=7,
    partitions={
        ZERO: RoutedPartition(
            100,
            0,
            2,
            Totals(read=90, written=86, quarantined=2, filtered=1, skipped=1, holes=7, gap=3),
            {"gc": Lane(41, Cause.FAILING, 41, 6, 600, 1_772_323_200.5, 1_772_323_000_000)},
            1_772_323_200_000,
            Listing(4, (BAD,)),
            rereads={"gc": Reread(0, 41)},
        ),
        ONE: RoutedPartition(token=7),
    },
    fingerprints={"events": 4_611_686_018_427_387_903},
    types={"fs": TypeState("c2NoZW1h", 80, 1, 4096, "0011"), "gc": TypeState("")},
    unfinished=Unfinished((STUCK, MERGED), (MOVE.target,), (("fs", DAY),)),
    pending=(STUCK,),
    reopened={("fs", "2026-02-28"): 1_772_323_000_000},
    open_days=frozenset({("fs", DAY), ("fs", "2026-02-28")}),
    first_batch="b1",
    retired=1005,
    replay_run=2,
    replay_entry=6,
)


@pytest.mark.parametrize("kind", list(EntryKind))
def test_a_released_entry_of_each_kind_stays_readable_and_is_still_written_so(kind: EntryKind) -> None:
    data = (GOLDEN / f"{kind}.json").read_bytes()
    assert decode_entry(data) == RELEASED[kind]
    assert encode_entry(RELEASED[kind]) == data


def test_a_released_snapshot_stays_readable_and_is_still_written_so() -> None:
    data = (GOLDEN / "snapshot.json").read_bytes()
    assert decode_state(data) == SNAPSHOT
    assert encode_state(SNAPSHOT) == data


@given(entries)
def test_an_entry_comes_back_as_it_was(entry: Entry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@given(states())
def test_a_snapshot_comes_back_as_it_was(state: LedgerState) -> None:
    back = decode_state(encode_state(state))
    assert back == state
    # The order in which topics were met tells their lives apart.
    assert list(back.partitions) == list(state.partitions)


def test_an_entry_without_contents_is_an_entry() -> None:
    empty = Entry(0, EntryKind.BATCH, "", "", 0.0)
    assert decode_entry(encode_entry(empty)) == empty
    assert decode_state(encode_state(LedgerState())) == LedgerState()


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "erasure"},
        {"number": ...},
        {"batch_id": ...},
        {"types": []},
        {"slices": {"start": 0}},
        {"renames": [{"source": "a", "target": "b", "type": "c", "colour": "red"}]},
        {"colour": "red"},
    ],
    ids=str,
)
def test_an_entry_with_anything_wrong_or_unknown_in_it_stops_the_reader(change: dict[str, Any]) -> None:
    body = {**json.loads(encode_entry(RELEASED[EntryKind.BATCH]))["entry"], **change}
    entry = {name: value for name, value in body.items() if value is not ...}
    with pytest.raises(UnreadableLedgerError):
        decode_entry(json.dumps({"v": VERSION, "entry": entry}).encode())


@pytest.mark.parametrize("version", [1, VERSION + 1, None, "2"])
def test_an_object_of_another_version_stops_the_reader_with_its_version(version: Any) -> None:
    body = json.loads(encode_entry(RELEASED[EntryKind.BATCH]))
    with pytest.raises(UnreadableLedgerError, match=f"is of version {version}, not {VERSION}"):
        decode_entry(json.dumps({**body, "v": version}).encode())
    with pytest.raises(UnreadableLedgerError):
        decode_entry(json.dumps({"entry": body["entry"]}).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"entry"', b"null", b"\xff\xfe", b"{}"])
def test_what_is_no_ledger_object_stops_the_reader(data: bytes) -> None:
    for decode in (decode_entry, decode_state):
        with pytest.raises(UnreadableLedgerError):
            decode(data)


def test_a_damaged_letter_in_a_text_stops_the_reader() -> None:
    whole = encode_entry(RELEASED[EntryKind.BATCH])
    with pytest.raises(UnreadableLedgerError):
        decode_entry(whole.replace(b'"batch_id":"', b'"batch_id":"\xff'))


def test_a_snapshot_is_no_entry_and_an_entry_no_snapshot() -> None:
    with pytest.raises(UnreadableLedgerError):
        decode_entry(encode_state(SNAPSHOT))
    with pytest.raises(UnreadableLedgerError):
        decode_state(encode_entry(RELEASED[EntryKind.BATCH]))


@given(st.data())
def test_half_an_entry_is_never_taken_for_a_whole_one(data: st.DataObject) -> None:
    whole = encode_entry(RELEASED[EntryKind.BATCH])
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(UnreadableLedgerError):
        decode_entry(whole[:cut])
