"""What is due, by the numbers of both tables and the files of partials; and that no point is lost or counted twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UserError
from penstock.tables.rollup import decide as deciding
from penstock.tables.rollup.decide import (
    MERGE_FILES_MIN,
    PORTION_ROWS_MAX,
    BeginClose,
    Clean,
    ClosePortion,
    Due,
    Merge,
    Moment,
    PartialsFile,
    decide,
    spans_of,
)
from penstock.tables.rollup.numbers import LEAST_MS, CloseState, refuse_apart
from penstock.tables.rollup.spec import LatePolicy, RollupSpec, Window

MINUTE, SEVEN, TEN = Window("1m", 60), Window("7m", 420), Window("10m", 600)
"""In the length of seconds, so that numbers are easy to read."""
SPEC = RollupSpec("rollups", partials_path="partials", windows=(MINUTE, TEN), lateness_ms=0)
DAY = "2024-01-01"


def file(first_ms: int, last_ms: int, epoch: int = 0, rows: int = 10, path: str = "") -> PartialsFile:
    return PartialsFile(path or f"{first_ms}-{last_ms}-{epoch}-{rows}", DAY, epoch, rows, first_ms, last_ms)


def closed(number: int, until_ms: int, **more: Any) -> CloseState:
    return replace(CloseState(number, until_ms, until_ms, closed=number, closed_until_ms=until_ms), **more)


def due(state: CloseState, files: list[PartialsFile], watermark_ms: int | None, spec: RollupSpec = SPEC) -> Due | None:
    return decide(state, files, spec, Moment(watermark_ms))


def test_nothing_is_due_before_the_watermark_passes_the_end_of_a_window_and_the_lateness() -> None:
    spec = replace(SPEC, lateness_ms=30)
    assert due(CloseState(), [file(0, 0)], 89, spec) is None
    assert due(CloseState(), [file(0, 0)], 90, spec) == BeginClose(1, 60, 90, 1)


def test_a_quiet_stream_begins_no_empty_closes() -> None:
    """Event time passes windows in which no file has a row."""
    assert due(closed(3, 600), [file(1_200, 1_200, epoch=3)], 1_199) is None
    assert due(closed(3, 600), [], 10**9) is None


def test_a_close_that_is_begun_goes_on_portion_by_portion_whatever_the_watermark_says() -> None:
    state = CloseState(2, 180, 180, portions=4, closed=1, closed_until_ms=60, closed_portions=3)
    found = due(state, [file(60, 120, epoch=1), file(0, 60, epoch=2)], None)
    assert isinstance(found, ClosePortion)
    assert (found.close, found.portion, found.buckets) == (2, 3, range(192, 256))
    assert [each.epoch for each in found.files] == [1], "a file that was committed after the close began is not taken"


def test_portions_cover_every_bucket_once() -> None:
    for portions in (1, 3, 7, 256):
        parts = [ClosePortion(1, each, portions, 0, (), (), ()).buckets for each in range(portions)]
        assert [bucket for part in parts for bucket in part] == list(range(256))


@pytest.mark.parametrize(
    ("rows", "portions"), [(1, 1), (PORTION_ROWS_MAX, 1), (PORTION_ROWS_MAX + 1, 2), (10**12, 256)]
)
def test_a_portion_reads_a_bounded_number_of_rows(rows: int, portions: int) -> None:
    found = due(CloseState(), [file(0, 0, rows=rows), file(60, 60, rows=rows, path="not due")], 60)
    assert found == BeginClose(1, 60, 60, portions)


def test_after_an_outage_time_is_closed_in_steps_of_which_each_reads_a_bounded_number_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deciding, "CLOSE_ROWS_MAX", 30)
    model = Model(replace(SPEC, windows=(MINUTE,), update_grace_ms=10**6))
    for minute in range(40):
        model.commit([60 * minute + second for second in range(10)])
    read = []
    while (chore := decide(model.state, list(model.files), model.spec, Moment(2_400))) is not None:
        if isinstance(chore, ClosePortion):
            read.append(chore.rows)
        if isinstance(chore, Merge):
            break
        model.step(Moment(2_400))
    assert max(read) <= 30 and sum(read) == 400
    assert model.emitted.total() == 400 and not model.late


def test_a_long_window_with_more_rows_than_that_still_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "CLOSE_ROWS_MAX", 5)
    found = due(closed(9, 540), [file(0, 540, rows=100), file(5_000, 5_000)], 100_000)
    assert isinstance(found, BeginClose) and 600 <= found.until_ms < 660


def test_a_larger_lateness_in_the_job_file_does_not_let_until_fall() -> None:
    spec = replace(SPEC, lateness_ms=10_000)
    assert due(closed(5, 600), [file(600, 600, epoch=5)], 700, spec) is None
    late = file(0, 0, epoch=5)
    found = decide(closed(5, 600), [late], spec, Moment(700, flush_late=True))
    assert found == BeginClose(6, 600, 700, 1)


def test_a_new_interval_begins_with_the_window_that_is_open() -> None:
    spans = {each.window.name: each for each in spans_of((MINUTE, SEVEN, TEN), 500, 900, LEAST_MS)}
    assert [(spans[name].start_ms, spans[name].end_ms) for name in ("1m", "7m", "10m")] == [
        (480, 900),
        (420, 840),
        (0, 600),
    ]


def test_windows_of_a_new_interval_that_have_lost_partials_are_not_emitted() -> None:
    """Partials below 480 are gone: the windows [420, 840) and [0, 600) cannot be whole any more."""
    spans = {each.window.name: each for each in spans_of((MINUTE, SEVEN, TEN), 500, 1_300, 480)}
    assert [spans[name].emitted_from_ms for name in ("1m", "7m", "10m")] == [480, 840, 600]


def test_late_rows_wait_for_the_end_of_a_window_unless_they_are_asked_for() -> None:
    late = [file(0, 0, epoch=1)]
    assert due(closed(1, 60), late, 119) is None
    assert due(closed(1, 60), late, 120) == BeginClose(2, 120, 120, 1)
    assert decide(closed(1, 60), late, SPEC, Moment(60, flush_late=True)) == BeginClose(2, 60, 60, 1)


def test_rows_of_an_epoch_before_are_late_only_once() -> None:
    assert decide(closed(2, 120), [file(0, 0, epoch=1)], SPEC, Moment(120, flush_late=True)) is None


def test_an_update_reads_all_files_of_the_windows_that_late_rows_touch() -> None:
    """A late row at 60 touches [60, 120) and, for ten minutes, [0, 600): of the latter all partials are needed."""
    files = [file(0, 30), file(540, 540, epoch=1), file(600, 600, epoch=1), file(60, 60, epoch=2)]
    files.append(file(660, 660, epoch=2))
    state = CloseState(3, 660, 660, closed=2, closed_until_ms=660)
    dropped, updated = (decide(state, files, replace(SPEC, late=policy), Moment(None)) for policy in LatePolicy)
    assert isinstance(dropped, ClosePortion) and isinstance(updated, ClosePortion)
    assert (dropped.files, dropped.late_files) == ((), (files[3],))
    assert updated.files == tuple(files[:4])


def test_partials_go_once_every_window_over_them_is_closed_and_the_grace_is_over() -> None:
    spec = replace(SPEC, windows=(MINUTE, SEVEN, TEN), update_grace_ms=100)
    files = [file(0, 360), file(0, 420)]
    assert due(closed(1, 699), files, 0, spec) is None, "the window of ten minutes is over for less than the grace"
    found = due(closed(1, 700), files, 0, spec)
    assert found == Clean(1, (files[0],), 420), "the row at 420 is in the window [420, 840) of seven minutes"
    assert due(closed(1, 700), [file(0, 360, epoch=1)], 0, spec) is None, "its late rows are not counted yet"


def test_small_files_of_a_day_are_merged_when_there_are_enough_of_about_the_same_size() -> None:
    files = [file(600, 600, epoch=each % 2, rows=9, path=str(each)) for each in range(MERGE_FILES_MIN)]
    found = due(closed(2, 60), files, 0)
    assert isinstance(found, Merge) and set(found.files) == set(files) and found.epoch == 1
    assert due(closed(2, 60), files[1:], 0) is None
    assert due(closed(1, 60), files, 0) is None, "those of epoch 1 may still be late"
    assert due(closed(2, 60), [*files[1:], file(600, 600, rows=10**5)], 0) is None


def test_cleaning_and_merging_take_turns_with_closes_that_are_always_due() -> None:
    files = [file(0, 0, rows=1000), file(600, 600, epoch=1)]
    files += [file(600, 600, rows=9, path=str(number)) for number in range(MERGE_FILES_MIN)]
    state, last, done = closed(1, 600), "merge", []
    for _ in range(6):
        work = decide(state, files, SPEC, Moment(660, last=last))
        assert work is not None
        last = work.name
        done.append(last)
    assert done == ["close", "clean", "merge"] * 2
    begun = replace(state, close=2, until_ms=660)
    assert isinstance(decide(begun, files, SPEC, Moment(None, last="close")), ClosePortion), "it is completed first"


def test_tables_that_do_not_belong_together_are_refused() -> None:
    for begun, complete in ((0, 1), (2, 0), (5, 3)):
        with pytest.raises(UserError):
            refuse_apart(CloseState(begun, closed=complete), "partials", "windows")
    for begun, complete in ((0, 0), (1, 0), (1, 1)):
        refuse_apart(CloseState(begun, closed=complete), "partials", "windows")


@dataclass(slots=True)
class Model:
    """Both tables as lists; a file has one row per point, which is an event time."""

    spec: RollupSpec
    state: CloseState = field(default_factory=CloseState)
    files: dict[PartialsFile, list[int]] = field(default_factory=dict)
    emitted: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By interval and event time, how often a point was in a closed window when this was first emitted."""
    late: Counter[tuple[str, int]] = field(default_factory=Counter)
    names: Iterator[int] = field(default_factory=count)

    def commit(self, times: list[int]) -> None:
        rows = [each - each % self.spec.finest.millis for each in times]
        made = PartialsFile(str(next(self.names)), DAY, self.state.close, len(rows), min(rows), max(rows))
        self.files[made] = times

    def step(self, moment: Moment) -> bool:
        chore = decide(self.state, list(self.files), self.spec, moment)
        match chore:
            case BeginClose():
                self.state = replace(
                    self.state,
                    close=chore.close,
                    until_ms=chore.until_ms,
                    watermark_ms=chore.watermark_ms,
                    portions=chore.portions,
                )
            case ClosePortion():
                self._close(chore)
            case Clean():
                for each in chore.files:
                    del self.files[each]
                self.state = replace(self.state, cleaned_ms=max(self.state.cleaned_ms, chore.cleaned_ms))
            case Merge():
                times = [at for each in chore.files for at in self.files.pop(each)]
                first, last = (end(each) for end, each in ((min, times), (max, times)))
                rows = [each - each % self.spec.finest.millis for each in (first, last)]
                merged = PartialsFile(str(next(self.names)), DAY, chore.epoch, len(times), *rows)
                self.files[merged] = times
        return chore is not None

    def _close(self, chore: ClosePortion) -> None:
        """Every point is in the first bucket."""
        if chore.portion == 0:
            for span in chore.spans:
                name = span.window.name
                taken = [at for each in chore.files for at in self.files[each]]
                late = [at for each in chore.late_files for at in self.files[each]]
                self.emitted.update((name, at) for at in taken if span.emitted_from_ms <= at < span.end_ms)
                self.late.update(
                    (name, at) for at in taken if span.start_ms <= at < min(span.emitted_from_ms, span.end_ms)
                )
                self.late.update((name, at) for at in late if at < span.start_ms)
        last = chore.portion + 1 == chore.portions
        self.state = replace(
            self.state,
            closed=chore.close if last else self.state.closed,
            closed_until_ms=chore.until_ms if last else self.state.closed_until_ms,
            closed_portions=0 if last else chore.portion + 1,
        )


TIMES = st.lists(st.integers(0, 3_000), min_size=1, max_size=4)
STEPS = st.lists(
    TIMES.map(lambda each: ("commit", each)) | st.integers(1, 4).map(lambda each: ("steps", each)), max_size=30
)


@given(STEPS, st.sampled_from([(MINUTE,), (MINUTE, TEN), (MINUTE, SEVEN, TEN)]), st.integers(0, 700), st.booleans())
def test_any_order_of_commits_and_closes_gives_each_point_to_each_interval_once_or_counts_it_late(
    steps: list[tuple[str, list[int] | int]], windows: tuple[Window, ...], lateness_ms: int, flush_late: bool
) -> None:
    model = Model(replace(SPEC, windows=windows, lateness_ms=lateness_ms, late=LatePolicy.UPDATE))
    committed: Counter[int] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deciding, "CLOSE_ROWS_MAX", 6)
        for _, what in steps:
            if isinstance(what, list):
                model.commit(what)
                committed.update(what)
            else:
                for _ in range(what):
                    model.step(Moment(max(committed, default=None), flush_late))
        model.spec = replace(model.spec, lateness_ms=0)
        while model.step(Moment(10_000, flush_late=True)):
            pass
    for window in windows:
        for at, points in committed.items():
            found = model.emitted[window.name, at] + model.late[window.name, at]
            assert found == points, (window, at)


def test_the_model_would_notice_a_row_that_is_taken_as_late_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        deciding,
        "_late_files",
        lambda files, spans, epoch: tuple(each for each in files if each.first_ms < spans[0].start_ms),
    )
    model = Model(replace(SPEC, windows=(MINUTE,), update_grace_ms=10**6))
    for times in ([0, 70], [10], [130], [200]):
        model.commit(times)
        while model.step(Moment(times[-1])):
            pass
        model.state = replace(model.state)
    assert model.late["1m", 10] > 1
