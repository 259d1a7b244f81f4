"""Drafts `table.rollup`: windows of the metrics of Telegraf or InfluxDB lines."""

from __future__ import annotations

import re
from collections import Counter

from penstock.errors import UserError
from penstock.flow.points.decoder import PointsDecoder
from penstock.flow.rows import in_parts
from penstock.job.spec import DecodeFormat, DecodeSpec, PointsSpec, PointTimes, Policies
from penstock.peek.draft import OTHER_KIND, Sections, record_batch, table_path
from penstock.peek.profile import Profile

_FORMATS: dict[str, DecodeFormat] = {"Telegraf": "telegraf", "Influx": "influx"}
_UNITS: dict[int, PointTimes] = {10: "s", 13: "ms", 16: "us", 19: "ns"}
"""By the digits of a present time."""
_TIME = re.compile(rb" (-?[0-9]+)\s*$", re.MULTILINE)


def suits(profile: Profile) -> bool:
    """Whether most records are metrics."""
    return _decode(profile) is not None


def draft(profile: Profile) -> Sections:
    decode = _decode(profile)
    if decode is None:
        raise UserError(
            f"{profile.sample.topic} has no metrics",
            detail=", ".join(profile.formats) or "it is empty",
            hint=f"rollups read Telegraf's JSON and InfluxDB lines; {OTHER_KIND}",
        )
    texts = [f"format: {decode.format}"]
    texts += [f"payload: {decode.payload}"] if decode.payload != "plain" else []
    texts += [f"timestamps: {decode.points.timestamps}"] if decode.points.timestamps else []
    decoder = PointsDecoder(decode, Policies())
    parts = in_parts(decoder.decode, record_batch(profile.sample.records))
    return Sections(
        f"{{{', '.join(texts)}}}" if len(texts) > 1 else decode.format,
        [
            "  rollup:",
            f"    path: {table_path(profile)}",
            "    windows: [1m, 10m, 1h, 24h]",
            "    lateness: 2m  # ? how long windows stay open for late points",
            "    update_grace: 1d  # keeps what windows are computed from, so that verify can compute them again",
        ],
        bad=Counter(reason for part in parts for reason in part.bad.errors.to_pylist()),
    )


def _decode(profile: Profile) -> DecodeSpec | None:
    """How the metrics are decoded; None if fewer than half of the records are metrics."""
    counts = Counter((content.format, content.payload) for content in profile.contents if content.format in _FORMATS)
    if not counts or 2 * counts.total() < profile.count:
        return None
    format_name, payload = counts.most_common(1)[0][0]
    unit = _unit(profile) if format_name == "Influx" else None
    return DecodeSpec(_FORMATS[format_name], payload, points=PointsSpec(unit))


def _unit(profile: Profile) -> PointTimes | None:
    """The unit of times in InfluxDB lines; None for the default."""
    lines = [content.data for content in profile.contents if content.format == "Influx"]
    digits = Counter(len(time) for line in lines for time in _TIME.findall(line))
    unit = _UNITS.get(digits.most_common(1)[0][0], "auto") if digits else "ns"
    return None if unit == "ns" else unit
