"""The section `table.rollup` of a job file: how its windows fit each other, and what it publishes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from penstock.job.faults import Finding, KeyPath
from penstock.job.reader import Reader
from penstock.job.sections import KindSection
from penstock.job.spec import JobSpec
from penstock.publish.section import check_publish
from penstock.tables.rollup.spec import RollupSpec, Window

AT: KeyPath = ("table", RollupSpec.kind)
WINDOWS_MAX = 16
QUANTILES_MAX = 16


class RollupSection(KindSection[RollupSpec]):
    """Points of metrics, aggregated in windows of event time."""

    spec = RollupSpec
    phrase = "windows of metrics"
    takes_points = True

    def complete(self, job: JobSpec[RollupSpec], reader: Reader) -> JobSpec[RollupSpec]:
        table = job.table
        if reader.states(*AT, "windows"):
            _check_windows(table.windows, reader)
        if len(table.aggregates.quantiles) > QUANTILES_MAX:
            reader.note((*AT, "quantiles"), f"more than {QUANTILES_MAX} quantiles")
        if len(set(table.aggregates.quantiles)) < len(table.aggregates.quantiles):
            reader.note((*AT, "quantiles"), "a quantile is named twice")
        if table.publish is not None:
            check_publish(table.publish, job, (*AT, "publish"), reader)
        return job

    def clash(self, job: JobSpec, other: JobSpec, other_path: Path) -> Finding | None:
        if _paths(job).isdisjoint(_paths(other)):
            return None
        return Finding(("table",), f"a table of the job in {other_path} lies in the same folder", "give each its own")


def _paths(job: JobSpec) -> set[str]:
    partials = {job.table.partials_path} if isinstance(job.table, RollupSpec) else set()
    return {job.table.path, *partials}


def _check_windows(windows: tuple[Window, ...], reader: Reader) -> None:
    at: KeyPath = (*AT, "windows")
    if not windows:
        reader.note(at, "names no window")
    elif len(windows) > WINDOWS_MAX:
        reader.note(at, f"more than {WINDOWS_MAX} windows")
    for index, (before, window) in enumerate(pairwise(windows), 1):
        if window.millis <= before.millis:
            reader.note((*at, index), f"{window.name} is not longer than {before.name}", "the shortest comes first")
        elif window.millis % windows[0].millis:
            hint = "every window is computed from the shortest"
            reader.note((*at, index), f"{window.name} is no multiple of {windows[0].name}", hint)
