"""Decides which close or cleaning is due, from the numbers of both tables and the files of partials. Pure.

An interval closes a span of event time at once: of the windows that end in `(closed until, until]` the first begins
where the last closed one ended. Rows before the span are late for the interval (RULES W2, W3).

While a close is under way, no row below its epoch is removed: so every attempt reads the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.lake.compaction import Limit, gather
from penstock.tables.rollup.numbers import LEAST_MS, CloseState
from penstock.tables.rollup.spec import RollupSpec, Window

CLOSE_ROWS_MAX = 8_000_000
"""Rows of partials that a close reads, by the statistics of files; a larger close is shortened, if possible."""
CLEAN_ROWS_MAX = 32_000_000
"""Files that one chore removes; only their counts are read."""


@dataclass(frozen=True, slots=True)
class PartialsFile:
    """An active file of partials, with the starts of the first and the last finest window in it."""

    path: str
    epoch: int
    rows: int
    first_ms: int
    last_ms: int

    def meets(self, start_ms: int, end_ms: int) -> bool:
        """Whether it can have rows in `[start, end)`."""
        return self.first_ms < end_ms and self.last_ms >= start_ms


@dataclass(frozen=True, slots=True)
class ClosedSpan:
    """The event time `[start, end)` whose windows of one interval a close closes; it may be empty."""

    window: Window
    start_ms: int
    end_ms: int

    @property
    def empty(self) -> bool:
        return self.start_ms >= self.end_ms


def spans_of(windows: Iterable[Window], before_ms: int, until_ms: int) -> tuple[ClosedSpan, ...]:
    """The span that each interval closes between two instants, empty spans included."""
    return tuple(ClosedSpan(window, window.start_of(before_ms), window.start_of(until_ms)) for window in windows)


@dataclass(frozen=True, slots=True)
class BeginClose:
    """Close `close` takes the present files, and closes the windows that end at or before `until_ms`."""

    name = "close"
    batch = None
    close: int
    until_ms: int
    watermark_ms: int | None


@dataclass(frozen=True, slots=True)
class CompleteClose:
    """Write the due windows of the close that is begun, and what its late rows change."""

    name = "close"
    batch = None
    close: int
    until_ms: int
    cleaned_ms: int
    """Late points do not update closed windows that begin before it: these may have lost partials."""
    spans: tuple[ClosedSpan, ...]
    files: tuple[PartialsFile, ...]
    """Files that may have rows of due windows, or of windows that may be updated."""
    late_files: tuple[PartialsFile, ...]


@dataclass(frozen=True, slots=True)
class Clean:
    """Remove files whose windows have all been closed for longer than the grace."""

    name = "clean"
    batch = None
    closed: int
    files: tuple[PartialsFile, ...]
    cleaned_ms: int


Due = BeginClose | CompleteClose | Clean


def decide(
    state: CloseState,
    files: Sequence[PartialsFile],
    spec: RollupSpec,
    watermark_ms: int | None,
    *,
    flush_late: bool = False,
) -> Due | None:
    """The next work; None if nothing is due. Cleaning comes before another close, which may always be due.

    `flush_late`: late rows alone make a close due; otherwise they wait until event time passes a window's end.
    """
    if state.under_way:
        return _complete(state, files, spec)
    return _clean(state, files, spec) or _begin(state, files, spec, watermark_ms, flush_late)


def _begin(
    state: CloseState, files: Sequence[PartialsFile], spec: RollupSpec, watermark_ms: int | None, flush_late: bool
) -> BeginClose | None:
    until_ms = _until_ms(state, files, spec, watermark_ms)
    spans = spans_of(spec.windows, state.closed_until_ms, until_ms)
    passed = any(not span.empty for span in spans)
    late = _late_files(files, spans, state.close)
    if _due_files(files, spans) or (late and (passed or flush_late)):
        return BeginClose(state.closed + 1, until_ms, watermark_ms)
    return None


def _until_ms(state: CloseState, files: Sequence[PartialsFile], spec: RollupSpec, watermark_ms: int | None) -> int:
    """The end of the close: as far as the watermark allows, in steps after an outage.

    If the shortest step already exceeds the limit, take a longer one that reads up to twice as much: otherwise files
    that cover hours would be read again for every minute.
    """

    def due_rows(until_ms: int) -> int:
        spans = spans_of(spec.windows, state.closed_until_ms, until_ms)
        return sum(file.rows for file in _due_files(files, spans))

    reached = LEAST_MS if watermark_ms is None else watermark_ms - spec.lateness_ms
    until = max(state.closed_until_ms, reached)
    least = max(state.closed_until_ms, min((file.first_ms for file in files), default=until))
    step = spec.finest.millis
    while until - least > step and due_rows(until) > max(CLOSE_ROWS_MAX, 2 * due_rows(least + step)):
        middle = least + (until - least) // 2
        if due_rows(middle):
            until = middle
        else:
            least = middle
    return until


def _complete(state: CloseState, files: Sequence[PartialsFile], spec: RollupSpec) -> CompleteClose:
    """With updates, files of closed windows that late rows change are read too."""
    spans = spans_of(spec.windows, state.closed_until_ms, state.until_ms)
    taken = [file for file in files if file.epoch < state.close]
    late = _late_files(taken, spans, state.close - 1)
    times = [(span.start_ms, span.end_ms) for span in spans if not span.empty]
    if late and spec.late == "update":
        first_ms = min(file.first_ms for file in late)
        times += [(span.window.start_of(first_ms), span.start_ms) for span in spans]
    return CompleteClose(state.close, state.until_ms, state.cleaned_ms, spans, _meeting(taken, times), late)


def _due_files(files: Iterable[PartialsFile], spans: Sequence[ClosedSpan]) -> tuple[PartialsFile, ...]:
    return _meeting(files, [(span.start_ms, span.end_ms) for span in spans if not span.empty])


def _late_files(files: Iterable[PartialsFile], spans: Sequence[ClosedSpan], epoch: int) -> tuple[PartialsFile, ...]:
    closed_ms = max(span.start_ms for span in spans)
    return tuple(file for file in files if file.epoch == epoch and file.first_ms < closed_ms)


def _meeting(files: Iterable[PartialsFile], times: Sequence[tuple[int, int]]) -> tuple[PartialsFile, ...]:
    return tuple(file for file in files if any(file.meets(start_ms, end_ms) for start_ms, end_ms in times))


def _clean(state: CloseState, files: Sequence[PartialsFile], spec: RollupSpec) -> Clean | None:
    kept_from_ms = min(window.start_of(state.closed_until_ms - spec.update_grace_ms) for window in spec.windows)
    over = [file for file in files if file.epoch < state.closed and file.last_ms + spec.finest.millis <= kept_from_ms]
    rows: Limit[PartialsFile] = Limit(lambda file: file.rows, CLEAN_ROWS_MAX, firm=True)
    chosen = next(gather(sorted(over, key=lambda file: (file.last_ms, file.path)), rows), None)
    if chosen is None:
        return None
    return Clean(state.closed, chosen, chosen[-1].last_ms + spec.finest.millis)


def open_windows(window: Window, state: CloseState, files: Iterable[PartialsFile]) -> int:
    """How many windows with points are open, regardless of series."""
    open_from = window.start_of(state.closed_until_ms)
    spans = sorted(
        (max(file.first_ms, open_from) // window.millis, file.last_ms // window.millis)
        for file in files
        if file.last_ms >= open_from
    )
    count, counted_to = 0, open_from // window.millis - 1
    for first, last in spans:
        count += max(0, last - max(first, counted_to + 1) + 1)
        counted_to = max(counted_to, last)
    return count
