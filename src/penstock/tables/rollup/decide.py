"""What is due between partials and closed windows, from the numbers of both tables and the files of one. Pure.

An interval closes a span of event time at once: of the windows that end in `(closed until, until]` the first begins
where the last closed one ended. Rows before the span are late for the interval (RULES W2, W3).

While a close is begun and not complete, nothing changes the files below its epoch: cleaning and merging wait. So every
attempt of every portion reads the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.flow.points.series import BUCKETS
from penstock.tables.rollup.numbers import LEAST_MS, CloseState
from penstock.tables.rollup.spec import LatePolicy, RollupSpec, Window

PORTION_ROWS_MAX = 8_000_000
"""Of partials that one turn reads, as far as the statistics of files tell."""
CLOSE_ROWS_MAX = 500_000 * BUCKETS
"""Of files that a close reads; one that would read more closes less time, if it can: a bucket must fit in memory."""
CLEAN_ROWS_MAX = 32_000_000
"""In one turn; only their counts are read."""
MERGE_FILES_MIN = 8
"""Of about the same size: each row is then written again once for every eightfold growth of its file."""
MERGE_FILE_ROWS_MAX = 250_000
MERGE_ROWS_MAX = 2_000_000
"""In one turn."""


@dataclass(frozen=True, slots=True)
class PartialsFile:
    """An active file of partials, with the starts of the first and the last finest window in it."""

    path: str
    day: str
    epoch: int
    rows: int
    first_ms: int
    last_ms: int

    def meets(self, start_ms: int, end_ms: int) -> bool:
        """Whether it can have rows in `[start, end)`."""
        return self.first_ms < end_ms and self.last_ms >= start_ms


@dataclass(frozen=True, slots=True)
class Span:
    """The event time `[start, end)` whose windows of one interval a close closes; it may be empty."""

    window: Window
    start_ms: int
    end_ms: int
    complete_from_ms: int
    """Windows that begin before it may have lost partials: they are not emitted, their points are late."""

    @property
    def empty(self) -> bool:
        return self.start_ms >= self.end_ms

    @property
    def emitted_from_ms(self) -> int:
        return max(self.start_ms, self.complete_from_ms)


def spans_of(windows: Iterable[Window], before_ms: int, until_ms: int, cleaned_ms: int) -> tuple[Span, ...]:
    """What each interval closes between two instants, empty spans included."""
    return tuple(
        Span(window, window.start_of(before_ms), window.start_of(until_ms), -window.start_of(-cleaned_ms))
        for window in windows
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """A chore that the table performs by itself."""

    name: ClassVar[str]
    batch: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class BeginClose(_Work):
    """Close `close` takes the files that are there now, and closes the windows that end at or before `until_ms`."""

    name = "close"
    close: int
    until_ms: int
    watermark_ms: int | None
    portions: int


@dataclass(frozen=True, slots=True)
class ClosePortion(_Work):
    """A range of buckets of a close: its due windows, and its late rows."""

    name = "close"
    close: int
    portion: int
    portions: int
    until_ms: int
    spans: tuple[Span, ...]
    files: tuple[PartialsFile, ...]
    """Those that hold rows of due windows, or of windows that may be updated."""
    late_files: tuple[PartialsFile, ...]

    @property
    def buckets(self) -> range:
        return range(BUCKETS * self.portion // self.portions, BUCKETS * (self.portion + 1) // self.portions)

    @property
    def rows(self) -> int:
        """Of its files, in its share of the buckets."""
        return _rows({*self.files, *self.late_files}) // self.portions


@dataclass(frozen=True, slots=True)
class Clean(_Work):
    """Files whose windows are all closed for longer than the grace."""

    name = "clean"
    closed: int
    files: tuple[PartialsFile, ...]
    cleaned_ms: int


@dataclass(frozen=True, slots=True)
class Merge(_Work):
    """Small files of one day that no close takes as late any more; the result has the greatest of their epochs."""

    name = "merge"
    closed: int
    files: tuple[PartialsFile, ...]

    @property
    def epoch(self) -> int:
        return max(file.epoch for file in self.files)


Due = BeginClose | ClosePortion | Clean | Merge
TURNS = (BeginClose.name, Clean.name, Merge.name)
"""The order in which kinds of work take turns, so that none waits for ever while others are always due."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What else decides what is due."""

    watermark_ms: int | None
    flush_late: bool = False
    """Late rows are due by themselves; else they wait until event time passes a window's end."""
    last: str = TURNS[-1]
    """The kind of work that was done last, or tried."""


def decide(state: CloseState, files: Sequence[PartialsFile], spec: RollupSpec, moment: Moment) -> Due | None:
    """The next work; None if nothing is due. A close that is begun is completed first, all else takes turns."""
    if state.under_way:
        return _portion(state, files, spec)
    kinds: dict[str, Callable[[], Due | None]] = {
        BeginClose.name: lambda: _begin(state, files, spec, moment),
        Clean.name: lambda: _clean(state, files, spec),
        Merge.name: lambda: _merge(state, files),
    }
    next_turn = TURNS.index(moment.last) + 1
    due = (kinds[name]() for name in (*TURNS[next_turn:], *TURNS[:next_turn]))
    return next((work for work in due if work is not None), None)


def _begin(state: CloseState, files: Sequence[PartialsFile], spec: RollupSpec, moment: Moment) -> BeginClose | None:
    until_ms = _until_ms(state, files, spec, moment.watermark_ms)
    spans = spans_of(spec.windows, state.closed_until_ms, until_ms, state.cleaned_ms)
    late = _late_files(files, spans, state.close)
    passed = any(not span.empty for span in spans)
    if not _due_files(files, spans) and not (late and (passed or moment.flush_late)):
        return None
    rows = _rows({*_read_files(files, spans, late, spec), *late})
    portions = min(BUCKETS, max(1, -(-rows // PORTION_ROWS_MAX)))
    return BeginClose(state.closed + 1, until_ms, moment.watermark_ms, portions)


def _until_ms(state: CloseState, files: Sequence[PartialsFile], spec: RollupSpec, watermark_ms: int | None) -> int:
    """As far as the watermark allows, in steps after an outage: rows of the finest windows do not merge."""

    def due_rows(until_ms: int) -> int:
        return _rows(_due_files(files, spans_of(spec.windows, state.closed_until_ms, until_ms, state.cleaned_ms)))

    reached = LEAST_MS if watermark_ms is None else watermark_ms - spec.lateness_ms
    until = max(state.closed_until_ms, reached)
    least = max(state.closed_until_ms, min((file.first_ms for file in files), default=until))
    while until - least > spec.finest.millis and due_rows(until) > CLOSE_ROWS_MAX:
        middle = least + (until - least) // 2
        if due_rows(middle):
            until = middle
        else:
            least = middle
    return until


def _portion(state: CloseState, files: Sequence[PartialsFile], spec: RollupSpec) -> ClosePortion:
    # In the middle of a close no interval takes part that its first portion did not have.
    joined = [window for window in spec.windows if window.name in state.joined]
    windows = joined if joined and state.closed_portions else spec.windows
    spans = spans_of(windows, state.closed_until_ms, state.until_ms, state.cleaned_ms)
    taken = [file for file in files if file.epoch < state.close]
    late = _late_files(taken, spans, state.close - 1)
    return ClosePortion(
        close=state.close,
        portion=state.closed_portions,
        portions=state.portions,
        until_ms=state.until_ms,
        spans=spans,
        files=_read_files(taken, spans, late, spec),
        late_files=late,
    )


def _due_files(files: Iterable[PartialsFile], spans: Sequence[Span]) -> tuple[PartialsFile, ...]:
    return _meeting(files, [(span.start_ms, span.end_ms) for span in spans if not span.empty])


def _late_files(files: Iterable[PartialsFile], spans: Sequence[Span], epoch: int) -> tuple[PartialsFile, ...]:
    closed_ms = max(span.start_ms for span in spans)
    return tuple(file for file in files if file.epoch == epoch and file.first_ms < closed_ms)


def _read_files(
    files: Sequence[PartialsFile], spans: Sequence[Span], late: Sequence[PartialsFile], spec: RollupSpec
) -> tuple[PartialsFile, ...]:
    """The files of due windows; with updates also those of closed windows that late rows touch."""
    times = [(span.start_ms, span.end_ms) for span in spans if not span.empty]
    if late and spec.late is LatePolicy.UPDATE:
        first_ms = min(file.first_ms for file in late)
        times += [(span.window.start_of(first_ms), span.start_ms) for span in spans]
    return _meeting(files, times)


def _meeting(files: Iterable[PartialsFile], times: Sequence[tuple[int, int]]) -> tuple[PartialsFile, ...]:
    return tuple(file for file in files if any(file.meets(start_ms, end_ms) for start_ms, end_ms in times))


def _clean(state: CloseState, files: Sequence[PartialsFile], spec: RollupSpec) -> Clean | None:
    kept_from_ms = min(window.start_of(state.closed_until_ms - spec.update_grace_ms) for window in spec.windows)
    over = [file for file in files if file.epoch < state.closed and file.last_ms + spec.finest.millis <= kept_from_ms]
    chosen = _first_files(sorted(over, key=lambda file: (file.last_ms, file.path)), CLEAN_ROWS_MAX)
    if not chosen:
        return None
    return Clean(state.closed, chosen, max(file.last_ms for file in chosen) + spec.finest.millis)


def _merge(state: CloseState, files: Sequence[PartialsFile]) -> Merge | None:
    groups: dict[tuple[str, int], list[PartialsFile]] = {}
    for file in files:
        if file.epoch < state.closed and file.rows < MERGE_FILE_ROWS_MAX:
            groups.setdefault((file.day, file.rows.bit_length() // 3), []).append(file)
    most = max(groups.values(), key=len, default=[])
    if len(most) < MERGE_FILES_MIN:
        return None
    oldest = sorted(most, key=lambda file: (file.epoch, file.path))
    return Merge(state.closed, _first_files(oldest, MERGE_ROWS_MAX))


def _first_files(files: Iterable[PartialsFile], rows_max: int) -> tuple[PartialsFile, ...]:
    """As many as have so many rows together; at least one."""
    chosen: list[PartialsFile] = []
    rows = 0
    for file in files:
        rows += file.rows
        if chosen and rows > rows_max:
            break
        chosen.append(file)
    return tuple(chosen)


def _rows(files: Iterable[PartialsFile]) -> int:
    return sum(file.rows for file in files)
