"""Line protocol as a format of metrics."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.flow.decode.influx.columns import read_columns
from penstock.flow.decode.influx.exact import read_metrics
from penstock.flow.decode.misfit import MisfitError
from penstock.flow.points.metrics import Label, Metric, MetricColumns
from penstock.flow.points.names import canonical_tags, name_part
from penstock.flow.points.spans import Mask
from penstock.job.spec import MetricNames, PointTimes


class InfluxFormat:
    """Both paths of it, for one style of names and one unit of time."""

    def __init__(self, names: MetricNames, unit: PointTimes) -> None:
        self._names = names
        self._unit = unit

    def columns(self, values: pa.Array) -> tuple[MetricColumns, Mask]:
        return read_columns(values, self._unit)

    def metrics(self, record: bytes, written_at_ms: int | None) -> Iterator[Metric]:
        return read_metrics(record, self._names, self._unit, written_at_ms)

    def key(self, text: str) -> str | None:
        try:
            return name_part(text, self._names)
        except MisfitError:
            return None

    def label(self, text: str) -> Label | None:
        """Without escapes, commas and equals signs have no other meaning."""
        # An escaped space, a comment and an indented line only look as if the label ended here.
        if "\\" in text or text[:1] in ("", "#", "\t", "\r"):
            return None
        name, *tags = text.split(",")
        by_key: dict[str, str] = {}
        for tag in tags:
            key, _, value = tag.partition("=")
            if not key or not value or "=" in value or key in by_key:
                return None
            by_key[key] = value
        if not name:
            return None
        try:
            return Label(name_part(name, self._names), canonical_tags(by_key, self._names))
        except MisfitError:
            return None
