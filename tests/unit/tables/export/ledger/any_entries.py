"""Any ledger entry and any state that the wire form has to carry."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.flow.write.manifest import StagedFile
from penstock.lake.state import TOTAL_NAMES, Totals
from penstock.logs.log import EpochMark, Partition
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
    RoutedFrom,
    RoutedPartition,
    TypeState,
    Unfinished,
)
from penstock.tables.export.spec import TypeStart

texts = st.text(st.characters(codec="utf-8"), max_size=8)
named = texts.filter(bool)
numbers = st.integers(0, 2**63 - 1)
instants = st.floats(0, 4e9)
partitions = st.builds(Partition, named, named, st.integers(0, 4095))
totals = st.lists(st.integers(-100, 2**53), min_size=len(TOTAL_NAMES), max_size=len(TOTAL_NAMES)).map(
    lambda counts: Totals(*counts)
)
causes = st.sampled_from(list(Cause))
days = st.dates().map(str)
epoch_marks = st.none() | st.builds(EpochMark, numbers, numbers)
marks = st.none() | st.integers(-(2**53), 2**53)
renames = st.builds(
    Rename,
    named,
    named,
    named,
    texts,
    st.integers(0, 4095),
    numbers,
    st.booleans(),
    numbers,
    numbers,
    numbers,
    texts,
)
rename_lists = st.lists(renames, max_size=3).map(tuple)
path_lists = st.lists(named, max_size=3).map(tuple)
day_lists = st.lists(st.tuples(named, days), max_size=2).map(tuple)
reopened = st.dictionaries(st.tuples(named, days), st.integers(-(2**53), 2**53), max_size=3)


def staged_files(partition: Partition) -> st.SearchStrategy[tuple[StagedFile, ...]]:
    """Quarantine files: they lie in one folder, and their place is that of their slice."""
    one = st.builds(
        StagedFile,
        st.just(partition.topic),
        st.just(partition.number),
        named,
        numbers,
        numbers,
        st.just({}),
        texts,
    )
    return st.lists(one, max_size=2).map(tuple)


@st.composite
def slices(draw: st.DrawFn) -> SliceRecord:
    partition = draw(partitions)
    written = st.builds(WrittenRecord, numbers, numbers, numbers, st.dictionaries(days, numbers, max_size=3))
    left = st.builds(DeferredRecord, numbers, numbers, numbers, causes)
    taken = st.none() | st.dictionaries(named, st.builds(TakenRecord, numbers, numbers, numbers), max_size=2)
    return SliceRecord(
        partition,
        draw(numbers),
        draw(numbers),
        draw(numbers),
        draw(totals),
        draw(marks),
        draw(st.dictionaries(named, written, max_size=2)),
        draw(st.dictionaries(named, left, max_size=2)),
        draw(taken),
        draw(staged_files(partition)),
        draw(texts),
        draw(epoch_marks),
    )


ranges = st.lists(st.tuples(numbers, numbers), max_size=2).map(tuple)
replays = st.builds(
    ReplayRecord,
    numbers,
    st.lists(st.tuples(partitions, ranges), max_size=2).map(tuple),
    st.dictionaries(named, st.builds(WrittenRecord, numbers, numbers, numbers), max_size=2),
)
entries = st.builds(
    Entry,
    number=st.integers(0, 2**53),
    kind=st.sampled_from(list(EntryKind)),
    job=texts,
    batch_id=texts,
    at=instants,
    starts=st.lists(st.builds(StartRecord, partitions, numbers, numbers), max_size=2).map(tuple),
    fences=st.lists(st.builds(FenceRecord, partitions, numbers), max_size=2).map(tuple),
    slices=st.lists(slices(), max_size=2).map(tuple),
    types=st.dictionaries(
        named, st.builds(TypeRecord, texts, st.none() | st.sampled_from(list(TypeStart)), texts), max_size=2
    ),
    idle=st.lists(st.tuples(partitions, st.integers(-(2**53), 2**53)), max_size=2).map(tuple),
    renames=rename_lists,
    removes=path_lists,
    pending=rename_lists,
    pending_removes=path_lists,
    pending_marks=day_lists,
    dropped=rename_lists,
    retired=numbers,
    failures=st.dictionaries(named, numbers, max_size=2),
    reopened=reopened.map(lambda found: tuple(found.items())),
    closed=day_lists,
    routings=st.dictionaries(named, named, max_size=2),
    replay=st.none() | replays,
)


@st.composite
def routed(draw: st.DrawFn, partition: Partition) -> RoutedPartition:
    lane = st.builds(Lane, numbers, causes, numbers, numbers, numbers, instants, marks, texts, numbers)
    listing = st.none() | st.builds(Listing, st.integers(1, 2**53), staged_files(partition))
    return RoutedPartition(
        draw(st.none() | numbers),
        draw(st.none() | numbers),
        draw(numbers),
        draw(totals),
        draw(st.dictionaries(named, lane, max_size=2)),
        draw(marks),
        draw(listing),
        draw(st.lists(st.builds(RoutedFrom, numbers, texts), max_size=2).map(tuple)),
        draw(st.dictionaries(named, st.builds(Reread, numbers, numbers), max_size=2)),
        draw(epoch_marks),
    )


@st.composite
def states(draw: st.DrawFn) -> LedgerState:
    known = draw(st.lists(partitions, max_size=3, unique=True))
    kinds = st.builds(TypeState, texts, numbers, numbers, numbers, st.text("01", max_size=64))
    return LedgerState(
        number=draw(st.integers(0, 2**53)),
        partitions={each: draw(routed(each)) for each in known},
        fingerprints=draw(st.dictionaries(named, st.none() | numbers, max_size=2)),
        types=draw(st.dictionaries(named, kinds, max_size=2)),
        unfinished=Unfinished(draw(rename_lists), draw(path_lists), draw(day_lists)),
        pending=draw(rename_lists),
        reopened=draw(reopened),
        open_days=draw(st.frozensets(st.tuples(named, days), max_size=3)),
        replay_run=draw(numbers),
        replay_entry=draw(numbers),
        first_batch=draw(texts),
        routings=draw(st.dictionaries(named, named, max_size=2)),
        retired=draw(numbers),
    )
