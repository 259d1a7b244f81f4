"""A batch with more bad records than the job accepts: how many, why, and what would help, in words of the job file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from penstock.errors import UserError
from penstock.flow.decode.outcome import TOMBSTONE
from penstock.flow.write.manifest import Counts, Reason

REASONS_SHOWN_MAX = 3
_TYPE = r"(?P<type>[a-z]+(?:\(\d+,\d+\))?)"
_NUMBERS = ("byte", "short", "int", "long", "float", "double", "decimal")


class BadShareError(UserError):
    """The job or its source is at fault, not single records: nothing of the batch is committed."""

    def __init__(self, total: Counts, share_max: float, reasons: Sequence[Reason]) -> None:
        shown = reasons[:REASONS_SHOWN_MAX]
        hints = dict.fromkeys(hint for each in shown if (hint := hint_for(each)))
        super().__init__(
            f"{total.quarantined} of {total.read} records of a batch do not fit, more than `on.bad_share` "
            f"({share_max:.0%}): nothing of it was committed",
            detail="".join(f"\n    {each.count} times {each.kind}\n      as {each.example}" for each in shown),
            hint="".join(f"\n    {each}" for each in hints)
            + "\n    if so many bad records are right, raise `on.bad_share`; with 1 they all go to quarantine",
        )
        self.total = total
        self.reasons = tuple(shown)


def hint_for(reason: Reason) -> str:
    """What to change in the job file; empty if nothing is known."""
    for pattern, hint in _HINTS:
        if found := pattern.search(reason.kind):
            return hint(found, reason)
    return ""


def _misfit(found: re.Match[str], reason: Reason) -> str:
    field, wanted, kind = found["field"], found["type"], found["kind"]
    if wanted in ("timestamp", "date") and kind == "number":
        instant = f"timestamp_millis({field})" if wanted == "timestamp" else f"day(timestamp_millis({field}))"
        return (
            f"{field} holds numbers since 1970: declare it as `long` under `schema`, and take the time from it "
            f"under `columns`, as in `{field.rsplit('.', 1)[-1]}_at: {instant}` "
            "(or `timestamp_seconds`, `timestamp_micros`)"
        )
    if wanted in ("timestamp", "date"):
        return f"{field}: times are texts such as 2026-03-01T12:00:00Z; declare other texts as `string`"
    if kind == "string" and wanted.startswith((*_NUMBERS, "boolean")):
        return f"{field} holds texts: declare it as `string`, or let its producers send what `{wanted}` takes"
    if kind == "number" and wanted == "string":
        return f"{field} holds numbers: declare it as `long` or `double`, or let its producers send texts"
    if kind == "number" and wanted.startswith(_NUMBERS):
        return (
            f"{field} holds numbers that `{wanted}` cannot: declare it as a wider type, `long`, `double` or a decimal"
        )
    if kind == "object":
        return f"{field} holds objects: declare their fields, as in `{field}: {{a: long, b: string}}`, or as a map"
    if kind == "array":
        return f"{field} holds arrays: declare it as `list<{wanted}>`"
    return f"{field} holds values of the kind {kind}: change its type under `schema`"


def _always(text: str) -> Callable[[re.Match[str], Reason], str]:
    return lambda found, reason: text


_HINTS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], Reason], str]], ...] = (
    (re.compile(rf"^(?P<field>[^:]+): expected {_TYPE}, found (?P<kind>[a-z]+)"), _misfit),
    (
        re.compile(r"^(?P<field>[^:]+): field is not in the schema"),
        lambda found, reason: (
            f"{found['field']} is not declared: add it to `schema`, or set `on.new_column` to `add` or `ignore`"
        ),
    ),
    (
        re.compile(r"not JSON|not UTF-8|^expected an object|value is empty"),
        _always("the records are not JSON objects: see `decode.format`, and `decode.payload` if they are compressed"),
    ),
    (re.compile(re.escape(TOMBSTONE)), _always("records without a value: set `on.tombstone` to `filter` or `row`")),
    (
        re.compile(r"^its type .* is not known|^has no type"),
        _always("name these types under `types`, or set `route.unknown` to `drop` or `table`; see also `route.by`"),
    ),
    (re.compile(r"event time"), _always("see `event_time`, and `days` for the times that are accepted")),
)
