"""Event-time days in UTC: the times of rows, which of them are accepted, and the rows of each day."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UserError
from penstock.flow.columns.computed import Faults, evaluate, is_time, output_type, times_of
from penstock.flow.columns.kafka_fields import MICROS_OF_DAY
from penstock.flow.columns.times import UTC_MICROS
from penstock.flow.rows import DecodedRows, groups, take
from penstock.job.expressions import Expression, to_text
from penstock.job.schema import job_type_name
from penstock.job.spec import DaysSpec

NO_EVENT_TIME = "has no event time"

_SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def event_times(expression: Expression, rows: DecodedRows, faults: Faults) -> pa.Array:
    """The event time of each row in microseconds; a row without one is null and named in `faults`."""
    fault = time_fault(expression, rows.columns.schema)
    if fault is not None:
        faults.update(dict.fromkeys(range(rows.kafka.num_rows), f"{NO_EVENT_TIME}: {fault}"))
        return pa.nulls(rows.kafka.num_rows, UTC_MICROS)
    values = evaluate(expression, rows, faults)
    unreadable: Faults = {}
    times = times_of(values, unreadable)
    faults.update({row: f"event time {why}" for row, why in unreadable.items()})
    if times.null_count:
        for row in pc.indices_nonzero(times.is_null()).to_pylist():
            faults.setdefault(row, NO_EVENT_TIME)
    return times


def time_fault(expression: Expression, schema: pa.Schema) -> str | None:
    """Why an expression gives no time; of an inferred schema, the job file could not know it."""
    try:
        kind = output_type(expression, schema)
    except UserError as error:
        return error.primary
    text = to_text(expression)
    hint = f"; write timestamp_millis({text}), or _seconds or _micros" if pa.types.is_integer(kind) else ""
    return None if is_time(kind) else f"{text} is not a time: it is of type {job_type_name(kind)}{hint}"


class DayBounds:
    """The event times that a batch accepts, both ends included."""

    def __init__(self, days: DaysSpec, now_ms: int) -> None:
        self._days = days
        self._least = (days.not_before - _EPOCH.date()) // _MICROSECOND
        self._most = now_ms * 1_000 + round(days.early_seconds_max * _SECOND)

    def outside(self, times: pa.Array, written: pa.Array) -> dict[int, str]:
        """The rows whose time is not accepted, with the reason; `written` are their Kafka times."""
        micros = times.cast(pa.int64())
        reasons: dict[int, str] = {}
        late_seconds_max = self._days.late_seconds_max
        if late_seconds_max is not None:
            # What is before the bound is refused in any case; a Kafka time far before it would wrap around.
            since = pc.max_element_wise(written.cast(UTC_MICROS).cast(pa.int64()), self._least, skip_nulls=False)
            oldest = pc.subtract(since, round(late_seconds_max * _SECOND))
            reason = f"more than {late_seconds_max:g} s before its Kafka time"
            reasons.update(_named(times, pc.less(micros, oldest), reason))
        span = pc.min_max(micros)
        if span["min"].is_valid and span["min"].as_py() < self._least:
            reasons.update(_named(times, pc.less(micros, self._least), f"before {self._days.not_before.isoformat()}"))
        if span["max"].is_valid and span["max"].as_py() > self._most:
            ahead = f"more than {self._days.early_seconds_max:g} s ahead of the clock"
            reasons.update(_named(times, pc.greater(micros, self._most), ahead))
        return reasons


def _named(times: pa.Array, refused: pa.Array, why: str) -> dict[int, str]:
    rows = pc.indices_nonzero(refused.fill_null(False)).to_pylist()
    return {row: f"event time {_shown(times[row])} is {why}" for row in rows}


class DayRows(NamedTuple):
    """The rows of one day in their order, with their offsets."""

    day: str
    rows: pa.RecordBatch
    offsets: npt.NDArray[np.int64]


def split_by_day(rows: pa.RecordBatch, times: pa.Array, offsets: pa.Array) -> Iterator[DayRows]:
    """Rows whose times are not null by UTC day, in their order; each day's rows are a copy of their own."""
    places = offsets.to_numpy()
    # Not a slice of sorted rows: it would keep the memory of all days alive for as long as one of them waits.
    for number, chosen in groups(times.cast(pa.int64()).to_numpy() // MICROS_OF_DAY):
        yield DayRows((_EPOCH + timedelta(days=number)).date().isoformat(), take(rows, chosen), places[chosen])


def _shown(time: pa.Scalar) -> str:
    micros = time.cast(pa.int64()).as_py()
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{micros} µs after 1970"
