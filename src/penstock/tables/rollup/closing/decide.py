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
from penstock.tables.rollup.closing.standing import LEAST_MS, Standing
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
        Span(each, _floor(before_ms, each), _floor(until_ms, each), -_floor(-cleaned_ms, each)) for each in windows
    )


@dataclass(frozen=True, slots=True)
class BeginClose:
    """Close `close` takes the files that are there now, and closes the windows that end at or before `until_ms`."""

    name: ClassVar[str] = "close"
    batch: ClassVar[None] = None
    close: int
    until_ms: int
    watermark_ms: int | None
    portions: int


@dataclass(frozen=True, slots=True)
class ClosePortion:
    """A range of buckets of a close: its due windows, and its late rows."""

    name: ClassVar[str] = "close"
    batch: ClassVar[None] = None
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
        read = {each.path: each.rows for each in (*self.files, *self.late_files)}
        return sum(read.values()) // self.portions


@dataclass(frozen=True, slots=True)
class Clean:
    """Files whose windows are all closed for longer than the grace."""

    name: ClassVar[str] = "clean"
    batch: ClassVar[None] = None
    closed: int
    files: tuple[PartialsFile, ...]
    cleaned_ms: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Small files of one day that no close takes as late any more; the result has the greatest of their epochs."""

    name: ClassVar[str] = "merge"
    batch: ClassVar[None] = None
    closed: int
    files: tuple[PartialsFile, ...]

    @property
    def epoch(self) -> int:
        return max(each.epoch for each in self.files)


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


def decide(standing: Standing, files: Sequence[PartialsFile], spec: RollupSpec, moment: Moment) -> Due | None:
    """The next work; None if nothing is due. A close that is begun is completed first, all else takes turns."""
    if standing.close > standing.closed:
        return _portion(standing, files, spec)
    looks: dict[str, Callable[[], Due | None]] = {
        BeginClose.name: lambda: _begin(standing, files, spec, moment),
        Clean.name: lambda: _clean(standing, files, spec),
        Merge.name: lambda: _merge(standing, files),
    }
    next_turn = TURNS.index(moment.last) + 1
    due = (looks[name]() for name in (*TURNS[next_turn:], *TURNS[:next_turn]))
    return next((work for work in due if work is not None), None)


def _begin(standing: Standing, files: Sequence[PartialsFile], spec: RollupSpec, moment: Moment) -> BeginClose | None:
    until = _until_ms(standing, files, spec, moment)
    spans = spans_of(spec.windows, standing.closed_until_ms, until, standing.cleaned_ms)
    due = _due_files(files, spans)
    late = _late_files(files, spans, standing.close)
    passed = any(not each.empty for each in spans)
    if not due and not (late and (passed or moment.flush_late)):
        return None
    read = {each.path: each.rows for each in (*_read_files(files, spans, late, spec), *late)}
    portions = min(BUCKETS, max(1, -(-sum(read.values()) // PORTION_ROWS_MAX)))
    return BeginClose(standing.closed + 1, until, moment.watermark_ms, portions)


def _until_ms(standing: Standing, files: Sequence[PartialsFile], spec: RollupSpec, moment: Moment) -> int:
    """As far as the watermark allows, in steps after an outage: rows of the finest windows do not merge."""
    reached = LEAST_MS if moment.watermark_ms is None else moment.watermark_ms - spec.lateness_ms
    until = max(standing.closed_until_ms, reached)
    least = max(standing.closed_until_ms, min((each.first_ms for each in files), default=until))
    while until - least > spec.finest.millis:
        middle = least + (until - least) // 2
        if _due_rows(standing, files, spec, until) <= CLOSE_ROWS_MAX:
            break
        if _due_rows(standing, files, spec, middle):
            until = middle
        else:
            least = middle
    return until


def _due_rows(standing: Standing, files: Sequence[PartialsFile], spec: RollupSpec, until_ms: int) -> int:
    spans = spans_of(spec.windows, standing.closed_until_ms, until_ms, standing.cleaned_ms)
    return sum(each.rows for each in _due_files(files, spans))


def _portion(standing: Standing, files: Sequence[PartialsFile], spec: RollupSpec) -> ClosePortion:
    close = standing.close
    spans = spans_of(_taking_part(standing, spec), standing.closed_until_ms, standing.until_ms, standing.cleaned_ms)
    taken = [each for each in files if each.epoch < close]
    late = _late_files(taken, spans, close - 1)
    return ClosePortion(
        close=close,
        portion=standing.closed_portions,
        portions=standing.portions,
        until_ms=standing.until_ms,
        spans=spans,
        files=_read_files(taken, spans, late, spec),
        late_files=late,
    )


def _taking_part(standing: Standing, spec: RollupSpec) -> Sequence[Window]:
    """All intervals of the job; in the middle of a close none that its first portion did not have."""
    joined = [each for each in spec.windows if each.name in standing.joined]
    return joined if joined and standing.closed_portions else spec.windows


def _due_files(files: Iterable[PartialsFile], spans: Sequence[Span]) -> tuple[PartialsFile, ...]:
    due = [each for each in spans if not each.empty]
    return tuple(each for each in files if any(each.meets(span.start_ms, span.end_ms) for span in due))


def _late_files(files: Iterable[PartialsFile], spans: Sequence[Span], epoch: int) -> tuple[PartialsFile, ...]:
    closed_ms = max(each.start_ms for each in spans)
    return tuple(each for each in files if each.epoch == epoch and each.first_ms < closed_ms)


def _read_files(
    files: Sequence[PartialsFile], spans: Sequence[Span], late: Sequence[PartialsFile], spec: RollupSpec
) -> tuple[PartialsFile, ...]:
    """The files of due windows; with updates also those of closed windows that late rows touch."""
    wanted = [(each.start_ms, each.end_ms) for each in spans if not each.empty]
    if late and spec.late is LatePolicy.UPDATE:
        first = min(each.first_ms for each in late)
        wanted += [(_floor(first, each.window), each.start_ms) for each in spans]
    return tuple(each for each in files if any(each.meets(start, end) for start, end in wanted))


def _clean(standing: Standing, files: Sequence[PartialsFile], spec: RollupSpec) -> Clean | None:
    limit = standing.closed_until_ms - spec.update_grace_ms
    end = min(_floor(limit, each) for each in spec.windows)
    over = [each for each in files if each.epoch < standing.closed and each.last_ms + spec.finest.millis <= end]
    chosen = _within(sorted(over, key=lambda each: (each.last_ms, each.path)), CLEAN_ROWS_MAX)
    if not chosen:
        return None
    return Clean(standing.closed, chosen, max(each.last_ms for each in chosen) + spec.finest.millis)


def _merge(standing: Standing, files: Sequence[PartialsFile]) -> Merge | None:
    groups: dict[tuple[str, int], list[PartialsFile]] = {}
    for each in files:
        if each.epoch < standing.closed and each.rows < MERGE_FILE_ROWS_MAX:
            groups.setdefault((each.day, each.rows.bit_length() // 3), []).append(each)
    most = max(groups.values(), key=len, default=[])
    if len(most) < MERGE_FILES_MIN:
        return None
    oldest = sorted(most, key=lambda each: (each.epoch, each.path))
    return Merge(standing.closed, _within(oldest, MERGE_ROWS_MAX))


def _within(files: Iterable[PartialsFile], rows_max: int) -> tuple[PartialsFile, ...]:
    """The first files, as many as have so many rows together; at least one."""
    chosen: list[PartialsFile] = []
    rows = 0
    for each in files:
        rows += each.rows
        if chosen and rows > rows_max:
            break
        chosen.append(each)
    return tuple(chosen)


def _floor(at_ms: int, window: Window) -> int:
    return at_ms - at_ms % window.millis
