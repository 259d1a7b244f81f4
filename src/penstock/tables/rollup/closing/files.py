"""The active files of both tables, with the event time that they span."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from deltalake import DeltaTable

from penstock.errors import InvariantError
from penstock.lake.delta.active_files import ActiveFile, active_files
from penstock.tables.rollup.closing.decide import PartialsFile

SPANNED = ("window_start",)
_DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLI = timedelta(milliseconds=1)


def partials_files(handle: DeltaTable) -> tuple[PartialsFile, ...]:
    """Every file of the loaded version."""
    return tuple(map(_partials_file, active_files(handle, SPANNED)))


def span_ms(file: ActiveFile, day: str | None) -> tuple[int, int]:
    """The starts of the first and the last window in a file; where its statistics do not tell, of its day."""
    span = file.spans["window_start"]
    if span is not None:
        return _millis(span[0]), _millis(span[1])
    if day is None:
        raise InvariantError(f"a file of a rollup has no day: {file.path}")
    start = _millis(datetime.combine(date.fromisoformat(day), time(), UTC))
    return start, start + _DAY_MS - 1


def _partials_file(file: ActiveFile) -> PartialsFile:
    day, epoch = file.values
    if day is None or epoch is None or file.rows is None:
        raise InvariantError(f"a file of partials is not one that Penstock wrote: {file.path}")
    return PartialsFile(file.path, day, int(epoch), file.rows, *span_ms(file, day))


def _millis(instant: datetime) -> int:
    return (instant - _EPOCH) // _MILLI
