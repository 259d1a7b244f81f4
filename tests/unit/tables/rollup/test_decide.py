"""What is due, by the numbers of both tables and the files of partials; and that no point is lost or counted twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UserError
from penstock.tables.rollup import decide as deciding
from penstock.tables.rollup.decide import (
    BeginClose,
    Clean,
    CompleteClose,
    Due,
    PartialsFile,
    decide,
    spans_of,
)
from penstock.tables.rollup.numbers import CloseState, refuse_apart
from penstock.tables.rollup.spec import LatePolicy, RollupSpec, Window

MINUTE, SEVEN, TEN = Window("1m", 60), Window("7m", 420), Window("10m", 600)
"""With lengths of seconds, so that numbers are easy to read."""
SPEC = RollupSpec("rollups", windows=(MINUTE, TEN), lateness_ms=0)


def file(first_ms: int, last_ms: int, epoch: int = 0, rows: int = 10, path: str = "") -> PartialsFile:
    return PartialsFile(path or f"{first_ms}-{last_ms}-{epoch}-{rows}", epoch, rows, first_ms, last_ms)


def closed(number: int, until_ms: int, **more: Any) -> CloseState:
    return replace(CloseState(number, until_ms, until_ms, closed=number, closed_until_ms=until_ms), **more)


def due(state: CloseState, files: list[PartialsFile], watermark_ms: int | None, spec: RollupSpec = SPEC) -> Due | None:
    return decide(state, files, spec, watermark_ms)


def test_nothing_is_due_before_the_watermark_passes_the_end_of_a_window_and_the_lateness() -> None:
    spec = replace(SPEC, lateness_ms=30)
    assert due(CloseState(), [file(0, 0)], 89, spec) is None
    assert due(CloseState(), [file(0, 0)], 90, spec) == BeginClose(1, 60, 90)


def test_a_stream_without_rows_begins_no_closes() -> None:
    """Event time passes windows in which no file has a row."""
    assert due(closed(3, 600), [file(1_200, 1_200, epoch=3)], 1_199) is None
    assert due(closed(3, 600), [], 10**9) is None


def test_a_close_under_way_is_completed_at_any_watermark() -> None:
    state = CloseState(2, 180, 180, closed=1, closed_until_ms=60)
    result = due(state, [file(60, 120, epoch=1), file(0, 60, epoch=2)], None)
    assert isinstance(result, CompleteClose)
    assert (result.close, result.until_ms) == (2, 180)
    assert [item.epoch for item in result.files] == [1], "a file that was committed after the close began is not taken"


def test_after_an_outage_time_is_closed_in_steps_of_which_each_reads_a_bounded_number_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deciding, "CLOSE_ROWS_MAX", 30)
    model = Model(replace(SPEC, windows=(MINUTE,), update_grace_ms=10**6))
    for minute in range(40):
        model.commit([60 * minute + second for second in range(10)])
    read = []
    while (chore := decide(model.state, list(model.files), model.spec, 2_400)) is not None:
        if isinstance(chore, CompleteClose):
            read.append(sum(item.rows for item in chore.files))
        model.step(2_400)
    assert max(read) <= 30 and sum(read) == 400
    assert model.emitted.total() == 400 and not model.late


def test_a_long_window_with_more_rows_than_that_still_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "CLOSE_ROWS_MAX", 5)
    files = [file(0, 540, rows=100), file(5_000, 5_000, rows=150)]
    result = due(closed(9, 540), files, 100_000)
    assert isinstance(result, BeginClose) and 600 <= result.until_ms < 5_060


def test_files_that_hold_hours_are_not_read_again_for_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "CLOSE_ROWS_MAX", 5)
    model = Model(replace(SPEC, windows=(MINUTE,), update_grace_ms=10**6))
    for second in range(10):
        model.commit([60 * minute + second for minute in range(40)])
    steps = 0
    while model.step(2_400):
        steps += 1
    assert steps == 2, "one close, which is begun and completed"
    assert model.emitted.total() == 400 and not model.late


def test_a_larger_lateness_in_the_job_file_does_not_let_until_fall() -> None:
    spec = replace(SPEC, lateness_ms=10_000)
    assert due(closed(5, 600), [file(600, 600, epoch=5)], 700, spec) is None
    late = file(0, 0, epoch=5)
    result = decide(closed(5, 600), [late], spec, 700, flush_late=True)
    assert result == BeginClose(6, 600, 700)


def test_an_interval_begins_with_the_window_that_is_open() -> None:
    spans = {item.window.name: item for item in spans_of((MINUTE, SEVEN, TEN), 500, 900)}
    assert [(spans[name].start_ms, spans[name].end_ms) for name in ("1m", "7m", "10m")] == [
        (480, 900),
        (420, 840),
        (0, 600),
    ]


def test_late_rows_wait_for_the_end_of_a_window_unless_flushed() -> None:
    late = [file(0, 0, epoch=1)]
    assert due(closed(1, 60), late, 119) is None
    assert due(closed(1, 60), late, 120) == BeginClose(2, 120, 120)
    assert decide(closed(1, 60), late, SPEC, 60, flush_late=True) == BeginClose(2, 60, 60)


def test_rows_of_an_epoch_before_are_late_only_once() -> None:
    assert decide(closed(2, 120), [file(0, 0, epoch=1)], SPEC, 120, flush_late=True) is None


def test_an_update_reads_all_files_of_the_windows_that_late_rows_touch() -> None:
    """A late row at 60 touches [60, 120) and, for ten minutes, [0, 600): of the latter all partials are needed."""
    files = [file(0, 30), file(540, 540, epoch=1), file(600, 600, epoch=1), file(60, 60, epoch=2)]
    files.append(file(660, 660, epoch=2))
    state = CloseState(3, 660, 660, closed=2, closed_until_ms=660)
    dropped, updated = (decide(state, files, replace(SPEC, late=policy), None) for policy in get_args(LatePolicy))
    assert isinstance(dropped, CompleteClose) and isinstance(updated, CompleteClose)
    assert (dropped.files, dropped.late_files) == ((), (files[3],))
    assert updated.files == tuple(files[:4])


def test_partials_are_removed_after_all_their_windows_are_closed_and_the_grace_is_over() -> None:
    spec = replace(SPEC, windows=(MINUTE, SEVEN, TEN), update_grace_ms=100)
    files = [file(0, 360), file(0, 420)]
    assert due(closed(1, 699), files, 0, spec) is None, "the window of ten minutes is over for less than the grace"
    result = due(closed(1, 700), files, 0, spec)
    assert result == Clean(1, (files[0],), 420), "the row at 420 is in the window [420, 840) of seven minutes"
    assert due(closed(1, 700), [file(0, 360, epoch=1)], 0, spec) is None, "its late rows are not counted yet"


def test_partials_are_cleaned_although_a_close_is_always_due() -> None:
    files = [file(0, 0), file(600, 600, epoch=1)]
    assert isinstance(decide(closed(1, 600), files, SPEC, 660), Clean)
    assert isinstance(decide(closed(1, 600), files[1:], SPEC, 660), BeginClose)
    begun = replace(closed(1, 600), close=2, until_ms=660)
    assert isinstance(decide(begun, files, SPEC, None), CompleteClose), "a close that is begun is completed first"


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
        rows = [item - item % self.spec.finest.millis for item in times]
        made = PartialsFile(str(next(self.names)), self.state.close, len(rows), min(rows), max(rows))
        self.files[made] = times

    def step(self, watermark_ms: int | None, *, flush_late: bool = False) -> bool:
        chore = decide(self.state, list(self.files), self.spec, watermark_ms, flush_late=flush_late)
        match chore:
            case BeginClose():
                self.state = replace(
                    self.state,
                    close=chore.close,
                    until_ms=chore.until_ms,
                    watermark_ms=chore.watermark_ms,
                )
            case CompleteClose():
                self._close(chore)
            case Clean():
                for item in chore.files:
                    del self.files[item]
                self.state = replace(self.state, cleaned_ms=max(self.state.cleaned_ms, chore.cleaned_ms))
        return chore is not None

    def _close(self, chore: CompleteClose) -> None:
        for span in chore.spans:
            name = span.window.name
            taken = [at for item in chore.files for at in self.files[item]]
            late = [at for late_file in chore.late_files for at in self.files[late_file]]
            self.emitted.update((name, at) for at in taken if span.start_ms <= at < span.end_ms)
            self.late.update((name, at) for at in late if at < span.start_ms)
        self.state = replace(self.state, closed=chore.close, closed_until_ms=chore.until_ms)


TIMES = st.lists(st.integers(0, 3_000), min_size=1, max_size=4)
STEPS = st.lists(
    TIMES.map(lambda item: ("commit", item)) | st.integers(1, 4).map(lambda item: ("steps", item)), max_size=30
)


@given(STEPS, st.sampled_from([(MINUTE,), (MINUTE, TEN), (MINUTE, SEVEN, TEN)]), st.integers(0, 700), st.booleans())
def test_any_order_of_commits_and_closes_gives_each_point_to_each_interval_once_or_counts_it_late(
    steps: list[tuple[str, list[int] | int]], windows: tuple[Window, ...], lateness_ms: int, flush_late: bool
) -> None:
    model = Model(replace(SPEC, windows=windows, lateness_ms=lateness_ms, late="update"))
    committed: Counter[int] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deciding, "CLOSE_ROWS_MAX", 6)
        for _, what in steps:
            if isinstance(what, list):
                model.commit(what)
                committed.update(what)
            else:
                for _ in range(what):
                    model.step(max(committed, default=None), flush_late=flush_late)
        model.spec = replace(model.spec, lateness_ms=0)
        while model.step(10_000, flush_late=True):
            pass
    for window in windows:
        for at, points in committed.items():
            result = model.emitted[window.name, at] + model.late[window.name, at]
            assert result == points, (window, at)


def test_the_model_detects_a_row_that_is_late_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        deciding,
        "_late_files",
        lambda files, spans, epoch: tuple(item for item in files if item.first_ms < spans[0].start_ms),
    )
    model = Model(replace(SPEC, windows=(MINUTE,), update_grace_ms=10**6))
    for times in ([0, 70], [10], [130], [200]):
        model.commit(times)
        while model.step(times[-1]):
            pass
        model.state = replace(model.state)
    assert model.late["1m", 10] > 1
