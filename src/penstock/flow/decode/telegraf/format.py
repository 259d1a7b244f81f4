"""Telegraf's JSON as a format of metrics."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from penstock.flow.decode.misfit import MisfitError
from penstock.flow.decode.telegraf.columns import FIELDS, HOLE, read_columns
from penstock.flow.decode.telegraf.exact import read_metrics
from penstock.flow.points.metrics import Label, Metric, MetricColumns, NamedFormat
from penstock.flow.points.names import canonical_tags, name_part
from penstock.flow.spans import Mask


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A label whose holes are filled with one field and a time."""

    name: str
    fields: dict[str, int]
    timestamp: int
    tags: dict[str, str] = {}


_PLAIN = msgspec.json.Decoder(_Plain)
_FILLINGS = ((0.5, 1000), (1.5, 2000))
"""A label is read twice with different values, so that no other field can be taken for the one in the hole."""


class TelegrafFormat(NamedFormat):
    """Both paths of it."""

    def columns(self, values: pa.Array) -> tuple[MetricColumns, Mask]:
        return read_columns(values, self.unit)

    def metrics(self, record: bytes, written_at_ms: int | None) -> Iterator[Metric]:
        return read_metrics(record, self.names, self.unit)

    def label(self, text: str) -> Label | None:
        if text.count(FIELDS) > 1:
            return None
        try:
            return self._plain_label(text) or self._any_label(text)
        except (MisfitError, ValueError):
            return None

    def _plain_label(self, text: str) -> Label | None:
        """In less time, the label of an object that has nothing but the known keys, none twice, and texts as tags."""
        try:
            found = _PLAIN.decode(_filled(text, '"x":0', "0"))
        except msgspec.MsgspecError:
            return None
        # Without escapes each text has two quotes; more than these would be those of a name that is given twice.
        texts_count = len(("name", "fields", "timestamp", found.name)) + ('"tags":' in text) + 2 * len(found.tags)
        if "\\" in text or text.count('"') != 2 * texts_count:
            return None
        return Label(name_part(found.name, self.names), canonical_tags(found.tags, self.names))

    def _any_label(self, text: str) -> Label | None:
        found = None
        for value, at_ms in _FILLINGS:
            record = _filled(text, f'"x":{value}', f"{at_ms}").encode()
            [metric] = read_metrics(record, self.names, "ms")
            if metric.fields != [("x", value)] or metric.at_ms != at_ms:
                return None
            found = Label(metric.name, metric.tags)
        return found


def _filled(label: str, field: str, time: str) -> str:
    """The label with its two holes filled; the one behind `"fields":{` is that of the fields."""
    before, between, after = label.split(HOLE)
    first, second = (field, time) if before.endswith(FIELDS) else (time, field)
    return f"{before}{first}{between}{second}{after}"
