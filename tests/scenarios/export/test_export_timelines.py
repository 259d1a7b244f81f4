"""The timelines of seed 000: the global offset at each t, as the seed states it.

Offsets are "the next to read": O1 = 3 means that readers see everything below 3. A type that is to be
written "later" has a rotation of its own, so that its records wait (read, counted, not written) until enough are there.
"""

from __future__ import annotations

import pytest

from penstock.engine.round import RECORD_BYTES_ASSUMED, BatchLanded, Waiting
from penstock.tables.kind import View
from tests.support.export_story import Story, after, owner
from tests.support.exports import ExportPipe, type_of
from tests.support.kafka import Produce, Topics

MINUTE = 60
RETRY_SECONDS = 30


@pytest.fixture
def story(export: ExportPipe, topic: Topics, produce: Produce) -> Story:
    return Story(export, topic(), produce)


def test_happy_timeline_commits_o1_then_o3_then_o5(story: Story) -> None:
    """A is written with every batch, B and C once they have seven events.

    offset  0  1  2 | 3  4  5 | 6  7  8  9 | 10 11 | 12 .. 16 |
    type    A  A  A | B  B  B | B  B  C  C | B  B  | C  ..  C |
                    t1        t2           t3      t4         t5
    O1 = 3 (behind A), O2 = 3 (B begins), O3 = 8 (C begins), O4 = 12 (behind B), O5 = 17 (behind C).
    """
    story.export.describe(
        story.topic, types=[type_of("A"), type_of("B", rotation=after(7)), type_of("C", rotation=after(7))]
    )
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "AAA")
        assert story.global_position == 3, "t1: O1"
        story.read(pipeline, "BBB")
        assert story.global_position == 3, "t2: B waits, no offset"
        story.read(pipeline, "BBCC")
        assert story.global_position == 3, "t3: B and C wait, no offset"
        assert story.written() == [0, 1, 2]
        story.read(pipeline, "BB")
        assert story.global_position == 8, "t4: O3, B is written and C waits from there on"
        assert story.export.offsets("B") == [3, 4, 5, 6, 7, 10, 11]
        story.read(pipeline, "CCCCC")
        assert story.global_position == 17, "t5: O5"
    assert story.export.offsets("C") == [8, 9, 12, 13, 14, 15, 16]
    assert story.written() == list(range(17))
    assert story.export.files() == [
        "A/day=2026-03-01/0.2.parquet",
        "B/day=2026-03-01/0.11.parquet",
        "C/day=2026-03-01/0.16.parquet",
    ]


def test_unhappy_timeline_commits_nothing_until_t3_then_o2_o5_o7(story: Story) -> None:
    """A cannot be written from t1 to t3; B and C are written once they have seven events.

    offset  0  1  2 | 3  4 | 5 | 6  7  8 | 9  10 11 | 12 13 14 | 15 .. 18 |
    type    A  A  A | B  B | B | A  B  A | B  C  C  | B  C  B  | C  ..  C |
                    t1     t2  t3        t4         t5         t6         t7
    O1 = 3, O2 = 3 (B begins), O3 = 6 (A is written again), O4 = 9, O5 = 10 (C begins), O6 = 15, O7 = 19.
    """
    story.export.describe(
        story.topic, types=[type_of("A"), type_of("B", rotation=after(7)), type_of("C", rotation=after(7))]
    )
    story.block("A")
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "AAA")
        assert story.global_position == 0, "t1: A fails, no offset"
        story.read(pipeline, "BB")
        assert story.global_position == 0, "t2: A and B, no offset"
        story.read(pipeline, "B")
        assert story.written() == []
        story.unblock("A")
        story.run_until_idle(pipeline)
        assert story.global_position == 0, "A is left alone for a while after a failure"
        story.clock.seconds += RETRY_SECONDS
        story.run_until_idle(pipeline)
        assert story.global_position == 3, "t3: O2, A is written and B waits from there on"
        assert story.export.offsets("A") == [0, 1, 2]
        story.read(pipeline, "ABA")
        assert story.global_position == 3, "t4: A is written at once, B waits, no offset"
        assert (story.export.offsets("A"), story.position_of("A")) == ([0, 1, 2, 6, 8], 9)
        story.read(pipeline, "BCC")
        assert story.global_position == 3, "t5: B and C, no offset"
        story.read(pipeline, "BCB")
        assert story.global_position == 10, "t6: O5, B is written and C waits from there on"
        assert story.export.offsets("B") == [3, 4, 5, 7, 9, 12, 14]
        story.read(pipeline, "CCCC")
        assert story.global_position == 19, "t7: O7"
    assert story.written() == list(range(19))
    recorder = story.export.recorder
    assert [item["type"] for item in recorder.named("type cannot be written")] == ["A"]
    assert [item["type"] for item in recorder.named("type written again")] == ["A"]


@pytest.mark.parametrize(("old_end", "new_end"), [(4, 6), (6, 4)], ids=["O1 below O2", "O1 above O2"])
@pytest.mark.parametrize("old_first", [True, False], ids=["C1 commits first", "C2 commits first"])
def test_rebalancing_the_late_owner_is_refused_in_either_order(
    story: Story, old_end: int, new_end: int, old_first: bool
) -> None:
    """C1 has staged [O0, O1) when C2 takes the partition over and stages [O0, O2); both start at O0 = 0.

    The fence of C2 lies between: C1 is refused however early it wakes up, and C2's rows are there once.
    """
    story.export.describe(story.topic, types=[type_of("A"), type_of("B")])
    story.send("ABABABAB")
    with owner(story, token=1) as c1, owner(story, token=2) as c2:
        old = c1.stage(old_end)
        new = c2.stage(new_end)
        first, second = (old, new) if old_first else (new, old)
        outcomes = {id(item): item.commit() for item in (first, second)}
        assert (outcomes[id(old)].version, len(outcomes[id(old)].refused)) == (None, 1)
        assert (len(outcomes[id(new)].accepted), len(outcomes[id(new)].refused)) == (1, 0)
        assert story.global_position == new_end
        assert story.written() == list(range(new_end))
        assert len(c1.recorder.named("slice refused")) == 1
        assert c2.recorder.named("slice refused") == []
        c2.pipeline.round(flush_now=True)
        assert not isinstance(c1.pipeline.round(flush_now=True), BatchLanded), "C1 has nothing to do any more"
    assert story.global_position == 8
    assert story.written() == list(range(8))


def test_rebalancing_an_owner_that_commits_before_it_is_replaced_is_not_read_again(story: Story) -> None:
    """C1 commits O1 = 5 at t2 while it is the owner; C2 continues from there, not from O0."""
    story.export.describe(story.topic, types=[type_of("A"), type_of("B")])
    story.send("ABABA")
    with owner(story, token=1) as c1, owner(story, token=2) as c2:
        c1.stage(5).commit()
        assert story.global_position == 5
        story.send("BAB")
        late = c1.stage(7)
        new = c2.stage(8)
        assert [(item.start, item.end) for item in new.batch.slices] == [(5, 8)]
        new.commit()
        assert len(late.commit().refused) == 1
    assert story.global_position == 8
    assert story.written() == list(range(8))


def test_rebalancing_a_late_catch_up_is_refused_like_any_slice(story: Story) -> None:
    """B waits since 1; C1 has staged it when C2 takes over, and C2 writes it and what came since."""
    story.export.describe(story.topic, types=[type_of("A"), type_of("B", rotation=after(100))])
    story.send("ABAB")
    with owner(story, token=1) as c1, owner(story, token=2) as c2:
        c1.pipeline.round()
        assert story.global_position == 1
        late = c1.stage_catch_up()
        story.send("BA")
        c2.stage(6).commit()
        c2.stage_catch_up().commit()
        assert len(late.commit().refused) == 1
    assert story.global_position == 6
    assert story.written() == list(range(6))


def test_rebalancing_a_batch_whose_claim_was_lost_is_dropped(story: Story) -> None:
    """An owner that knows that its claim is lost does not try to commit."""
    story.export.describe(story.topic, types=[type_of("A"), type_of("B")])
    story.send("ABAB")
    with owner(story, token=1) as c1, owner(story, token=2) as c2:
        staged = c1.stage(4)
        c1.claims.lost = True
        assert staged.commit().version is None
        assert len(c1.recorder.named("slice dropped")) == 1
        assert story.written() == []
        c2.stage(4).commit()
    assert story.written() == [0, 1, 2, 3]


def test_app_restart_writes_f_from_o0_and_s_never_again(story: Story) -> None:
    """First run: F fails all the time, S is written in two files. Second run: F works.

    offset  0  1  2  3 | 4  5  6  7 |  restart  | 8  9  10 11 |
    type    F  S  S  F | S  F  S  S |           | S  F  S  F  |
    O0 = 0, O1 = 4, O3 = 8; the second run ends at O4 = 12.
    """
    story.export.describe(story.topic, types=[type_of("F"), type_of("S")])
    story.block("F")
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "FSSF")
        assert (story.global_position, story.position_of("S")) == (0, 4), "t1: S is at O1"
        story.read(pipeline, "SFSS")
        assert (story.global_position, story.position_of("S")) == (0, 8), "t2: S is at O3, the whole still at O0"
    first_files = story.export.files("S")
    assert first_files == ["S/day=2026-03-01/0.2.parquet", "S/day=2026-03-01/0.7.parquet"]

    story.unblock("F")
    with story.export.opened(clock=story.clock) as pipeline:
        story.run_until_idle(pipeline)
        assert story.export.offsets("F") == [0, 3, 5], "t1: from O0 on"
        assert story.export.files("S") == first_files
        assert story.global_position == 8
        story.read(pipeline, "SFSF")
        assert story.global_position == 12, "t3: O4"
    assert story.export.offsets("S") == [1, 2, 4, 6, 7, 8, 10]
    assert story.export.offsets("F") == [0, 3, 5, 9, 11]


def test_time_based_partitioning_a_restart_at_any_t_reads_on_from_the_seeds_offset_or_beyond(story: Story) -> None:
    """One type with days D0, D1, D2, written after every sixth event; a new process at each t.

    offset  0  1 | 2 | 3  4  5 | 6  7  8 | 9  10 11 | 12 13 | 14 .. 19 |
    day     D1   | D2| D1      | D1   D2 | D1       | (B)   | D0       |
            t0   t1            t2        t3         t4      t5         t6
    O0 = 0, O1 = 2 (D2 begins), O2 = 6, O3 = 9, O4 = 12, O5 = 14 (D0 begins), O6 = 20.

    The seed keeps a file open for each day, so at t2 the rows of D2 still hold the offset at O1. Here a type's days
    are written together, so that the offset does not depend on days: it is O2 at t2, and the seed's at every other t.
    """
    story.export.describe(story.topic, types=[type_of("A", rotation=after(6)), type_of("B")])
    seed = {"t0": 0, "t1": 0, "t2": 2, "t3": 6, "t4": 12, "t5": 14, "t6": 20}
    ours = {**seed, "t2": 6}
    steps = {
        "t0": [("AA", 1)],
        "t1": [("A", 2)],
        "t2": [("AAA", 1)],
        "t3": [("AA", 1), ("A", 2)],
        "t4": [("AAA", 1)],
        "t5": [("BB", 1)],
        "t6": [("AAAAAA", 0)],
    }
    for moment, sent in steps.items():
        for kinds, day in sent:
            story.send(kinds, day)
        with story.export.opened(clock=story.clock) as pipeline:
            story.run_until_idle(pipeline)
        assert story.global_position == ours[moment], moment
        assert ours[moment] >= seed[moment]
        assert story.written() == list(range(ours[moment])), moment
    assert story.export.files() == [
        "A/day=2026-03-01/0.19.parquet",
        "A/day=2026-03-02/0.11.parquet",
        "A/day=2026-03-02/0.5.parquet",
        "A/day=2026-03-03/0.2.parquet",
        "A/day=2026-03-03/0.8.parquet",
        "B/day=2026-03-02/0.13.parquet",
    ]


def test_sparse_events_a_type_without_any_is_up_to_date_after_each_batch_and_gets_no_row(story: Story) -> None:
    story.export.describe(story.topic, types=[type_of("A"), type_of("C", rotation=after(1000))])
    with story.export.opened(clock=story.clock) as pipeline:
        for batch in range(1, 4):
            story.read(pipeline, "AAAA")
            assert story.position_of("C") == story.global_position == 4 * batch
    with story.export.opened(clock=story.clock) as pipeline:
        assert isinstance(pipeline.round(), Waiting), "after a restart nothing is read again for its sake"
    assert not (story.export.root / "C").exists()
    assert story.written() == list(range(12))


def test_sparse_events_a_rare_type_is_written_after_its_interval_and_delays_no_other(story: Story) -> None:
    """B's events are at 2 and 5; it is written 10 minutes after the first of them was read, also across a restart."""
    story.export.describe(story.topic, types=[type_of("A"), type_of("B", rotation="{events: 1000, every: 10m}")])
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "AAB")
        read_at = story.clock.seconds
        story.clock.seconds = read_at + 5 * MINUTE
        story.read(pipeline, "AAB")
        assert story.export.offsets("A") == [0, 1, 3, 4], "A does not wait for B"
        assert (story.position_of("A"), story.position_of("B"), story.global_position) == (6, 2, 2)
    with story.export.opened(clock=story.clock) as pipeline:
        story.clock.seconds = read_at + 9 * MINUTE
        story.run_until_idle(pipeline)
        assert story.global_position == 2, "not yet"
        story.clock.seconds = read_at + 10 * MINUTE
        story.run_until_idle(pipeline)
        assert story.global_position == 6, "the later event did not make it wait for longer"
    assert story.export.offsets("B") == [2, 5]


def test_sparse_events_an_old_position_does_not_prove_that_a_type_is_idle(story: Story) -> None:
    """B has one event, at 1, which could not be written; C never had one. Only the job log distinguishes them."""
    story.export.describe(story.topic)
    story.block("B")
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "ABA")
        for _ in range(2):
            story.read(pipeline, "AAA")
    assert [story.position_of(name) for name in "ABC"] == [9, 1, 9]
    assert story.export.state.of(story.partition).lags["B"].deferred == 1
    story.unblock("B")
    story.run_to_end()
    assert [story.position_of(name) for name in "ABC"] == [9, 9, 9]
    assert story.written() == list(range(9))


def test_a_long_catch_up_does_not_keep_idle_partitions_from_closing_their_days(story: Story) -> None:
    story.export.describe(story.topic, types=[type_of("A"), type_of("B", rotation="{every: 365d}")])
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "AB")
        bounds = pipeline.log.bounds([story.partition])
        due, event_times = [], []
        for _ in range(2):
            view = View({story.partition: 1}, bounds, story.clock.now(), RECORD_BYTES_ASSUMED, flush_now=True)
            due.append([chore.name for chore in pipeline.table.chores(view)])
            event_times.append(story.export.state.of(story.partition).watermark_ms or 0)
            story.clock.seconds += 30 * 86_400
    assert due == [["catch-up"], ["catch-up"]]
    assert event_times[1] - event_times[0] > 29 * 86_400_000
