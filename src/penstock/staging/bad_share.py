"""A batch with more bad records than the job accepts: how many, why, and which keys of the job file to change."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.errors import UserError
from penstock.flow.decode.outcome import TOMBSTONE
from penstock.flow.write.manifest import Counts, Reason

REASONS_SHOWN_MAX = 3
_FIELD = r"^(?P<field>[^:]+): "
_HINTS = (
    (
        rf"{_FIELD}expected (?:timestamp|date), found number",
        "{field} holds numbers since 1970: declare it as `long` under `schema`, and compute the time under `columns` "
        "with `timestamp_millis({field})`, `timestamp_seconds` or `timestamp_micros`, and the date with `day`",
    ),
    (
        rf"{_FIELD}expected (?:timestamp|date), found",
        "{field}: times are texts such as 2026-03-01T12:00:00Z; declare other texts as `string`",
    ),
    (
        rf"{_FIELD}expected (?P<type>[a-z]+(?:\(\d+,\d+\))?), found (?P<kind>[a-z]+)",
        "{field} holds values of the kind {kind} that `{type}` cannot hold: declare it under `schema` as what its "
        "records have, such as `string`, `long`, `double`, a wider decimal, `list<{type}>` or fields of an object",
    ),
    (
        rf"{_FIELD}field is not in the schema",
        "{field} is not declared: add it to `schema`, or set `on.new_column` to `add` or `ignore`",
    ),
    (
        r"not JSON|not UTF-8|^expected an object|value is empty",
        "the records are not JSON objects: see `decode.format`, and `decode.payload` if they are compressed",
    ),
    (re.escape(TOMBSTONE), "records without a value: set `on.tombstone` to `filter` or `row`"),
    (
        r"^its type .* is not known|^has no type",
        "name these types under `types`, or set `route.unknown` to `drop`; see also `route.by`",
    ),
    (r"event time", "see `event_time`, and `days` for the times that are accepted"),
)
"""By a pattern of the reason, what to change in the job file."""


class BadShareError(UserError):
    """So many bad records mean that the job does not match its source: nothing of the batch is committed."""

    def __init__(self, total: Counts, share_max: float, reasons: Sequence[Reason]) -> None:
        shown = reasons[:REASONS_SHOWN_MAX]
        hints = dict.fromkeys(hint for reason in shown if (hint := hint_for(reason)))
        super().__init__(
            f"{total.quarantined} of {total.read} records of a batch are bad, more than `on.bad_share` "
            f"({share_max:.0%}): nothing of it was committed",
            detail="".join(f"\n    {reason.count} times {reason.kind}\n      as {reason.example}" for reason in shown),
            hint="".join(f"\n    {hint}" for hint in hints)
            + "\n    if so many bad records are right, raise `on.bad_share`; with 1 they all go to quarantine",
        )
        self.total = total
        self.reasons = tuple(shown)


def hint_for(reason: Reason) -> str:
    """What to change in the job file; empty if nothing is known."""
    matches = ((re.search(pattern, reason.kind), hint) for pattern, hint in _HINTS)
    return next((hint.format(**match.groupdict()) for match, hint in matches if match), "")
