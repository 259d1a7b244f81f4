"""The section `table.rollup` of a job file: windows, lateness, and what is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import pyarrow as pa
from pydantic import PlainValidator

from penstock.job.checks.table import table_path
from penstock.job.faults import Finding, KeyPath, RefusedError, kind_of, shown
from penstock.job.sections.kind_section import KindSection, Parts, Reading
from penstock.job.sections.models import JobFile, TableSection
from penstock.job.sections.quantities import QuantityError, parse_duration
from penstock.job.sections.scalars import Date, Text, one_of
from penstock.job.sections.section import stated
from penstock.job.spec import JobSpec, Secret, TableSpec
from penstock.publish.section import PublishSection, loop_findings, publish_findings, publish_spec
from penstock.tables.rollup.spec import Aggregates, LatePolicy, RollupSpec, Window

AT: KeyPath = ("table", RollupSpec.kind)
WINDOWS_DEFAULT = ("1m", "10m", "1h", "24h")
WINDOWS_MAX = 16
WINDOW_SECONDS_MIN, WINDOW_SECONDS_MAX = 1.0, 366 * 86400.0
QUANTILES_MAX = 16
COMPUTED = ("count", "sum", "min", "max", "mean", "first", "last")


def window(value: object) -> Window:
    word, seconds = _duration(value)
    if not WINDOW_SECONDS_MIN <= seconds <= WINDOW_SECONDS_MAX:
        raise RefusedError(f"{shown(word)} is no window", "from 1s to 366d")
    return Window(word, round(seconds * 1000))


def millis(value: object) -> int:
    """A duration, which may be 0."""
    return round(_duration(value)[1] * 1000)


def _duration(value: object) -> tuple[str, float]:
    """As the file writes it, and in seconds."""
    if not isinstance(value, str):
        raise RefusedError(f"expected a duration, found {kind_of(value)}", "write the unit too, as in 60s")
    word = value.strip()
    try:
        return word, parse_duration(word)
    except QuantityError as error:
        raise RefusedError(f"{shown(word)} is no duration", str(error)) from None


def rank(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError(f"expected a number, found {kind_of(value)}", "write 0.99")
    if not 0 < value < 1:
        raise RefusedError("expected a number between 0 and 1", "write 0.99")
    return float(value)


Millis = Annotated[int | None, PlainValidator(millis)]


class RollupTableSection(TableSection):
    partials: Text = None
    windows: list[Annotated[Window, PlainValidator(window)]] | None = None
    lateness: Millis = None
    idle_after: Millis = None
    future_cutoff: Millis = None
    not_before: Date = None
    late: Annotated[LatePolicy | None, one_of(LatePolicy)] = None
    update_grace: Millis = None
    aggregates: list[Annotated[str, one_of(COMPUTED)]] | None = None
    quantiles: list[Annotated[float, PlainValidator(rank)]] | None = None
    publish: PublishSection | None = None


RollupReading = Reading[JobFile, RollupTableSection]


class RollupSection(KindSection[JobFile, RollupTableSection, Parts]):
    """Points of metrics, aggregated in windows of event time."""

    name = RollupSpec.kind
    phrase = "windows of metrics"
    table = RollupTableSection
    file = JobFile
    takes_points = True

    def read(self, reading: RollupReading) -> tuple[Parts, list[Finding]]:
        findings: list[Finding] = []
        if reading.section is not None:
            findings += _window_findings(reading.section.windows)
            findings += _quantile_findings(reading.section.quantiles or [])
            findings += _path_findings(reading)
            if reading.section.publish is not None:
                at = (*AT, "publish")
                findings += publish_findings(reading.section.publish, reading.document, at)
                findings += loop_findings(reading.section.publish, reading.file, at)
        return Parts(pa.schema([]), {}), findings

    def build(self, reading: RollupReading, parts: Parts, place: TableSpec) -> RollupSpec:
        section = reading.section
        assert section is not None
        asked = set(section.aggregates or ())
        spec = RollupSpec(
            place.path,
            place.storage_options,
            place.shared,
            partials_path=_partials_path(reading, place.path),
            windows=tuple(section.windows or map(window, WINDOWS_DEFAULT)),
            aggregates=Aggregates(
                ends=bool(asked & {"first", "last"}),
                mean="mean" in asked,
                quantiles=tuple(sorted(section.quantiles or ())),
            ),
        )
        return replace(
            spec,
            **stated(
                lateness_ms=section.lateness,
                idle_after_ms=section.idle_after,
                future_cutoff_ms=section.future_cutoff,
                not_before=section.not_before,
                late=section.late,
                update_grace_ms=section.update_grace,
                publish=publish_spec(section.publish, reading.folder) if section.publish is not None else None,
            ),
        )

    def clash(self, job: JobSpec, other: JobSpec, other_path: Path) -> Finding | None:
        ours = {job.table.path, *_partials_of(job)}
        if ours.isdisjoint({other.table.path, *_partials_of(other)}):
            return None
        return Finding(("table",), f"a table of the job in {other_path} lies in the same folder", "give each its own")


def _partials_of(job: JobSpec) -> set[str]:
    return {job.table.partials_path} if isinstance(job.table, RollupSpec) else set()


def _partials_path(reading: RollupReading, path: str) -> str:
    assert reading.section is not None
    if reading.section.partials is not None:
        return table_path(reading.section.partials, reading.folder)
    return Secret(f"{path}_partials") if isinstance(path, Secret) else f"{path}_partials"


def _window_findings(windows: list[Window] | None) -> Iterator[Finding]:
    at: KeyPath = (*AT, "windows")
    if windows is None:
        return
    if not windows:
        yield Finding(at, "names no window")
    elif len(windows) > WINDOWS_MAX:
        yield Finding(at, f"more than {WINDOWS_MAX} windows")
    for index, (before, each) in enumerate(pairwise(windows), 1):
        if each.millis <= before.millis:
            yield Finding((*at, index), f"{each.name} is not longer than {before.name}", "the shortest comes first")
        elif each.millis % windows[0].millis:
            hint = "every window is computed from the shortest"
            yield Finding((*at, index), f"{each.name} is no multiple of {windows[0].name}", hint)


def _quantile_findings(quantiles: list[float]) -> Iterator[Finding]:
    at: KeyPath = (*AT, "quantiles")
    if len(quantiles) > QUANTILES_MAX:
        yield Finding(at, f"more than {QUANTILES_MAX} quantiles")
    if len(set(quantiles)) < len(quantiles):
        yield Finding(at, "a quantile is named twice")


def _path_findings(reading: RollupReading) -> Iterator[Finding]:
    section = reading.section
    if section is None or section.partials is None or section.path is None:
        return
    partials, path = table_path(section.partials, reading.folder), table_path(section.path, reading.folder)
    if partials == path or partials.startswith(f"{path}/") or path.startswith(f"{partials}/"):
        yield Finding((*AT, "partials"), "one of both tables lies inside the other", "put them side by side")
