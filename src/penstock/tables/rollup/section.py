"""The section `table.rollup` of a job file: how its windows fit each other, and what it publishes."""

from __future__ import annotations

from itertools import pairwise

from penstock.job.faults import KeyPath
from penstock.job.reader import Reader
from penstock.job.sections import KindSection
from penstock.job.spec import POINT_FORMATS, JobSpec, TombstonePolicy
from penstock.publish.section import check_publish
from penstock.tables.rollup.spec import RollupSpec, Window

AT: KeyPath = ("table", RollupSpec.kind)
WINDOWS_MAX = 16
QUANTILES_MAX = 16


class RollupSection(KindSection[RollupSpec]):
    """Points of metrics, aggregated in windows of event time."""

    spec = RollupSpec
    decoders = POINT_FORMATS
    unused = ("schema", "columns", "place", "drop", "sql")

    def complete(self, job: JobSpec[RollupSpec], reader: Reader) -> JobSpec[RollupSpec]:
        table = job.table
        if job.on.tombstone is TombstonePolicy.ROW:
            reader.note(
                ("on", "tombstone"), "row has no meaning: a tombstone has no points", "use filter or quarantine"
            )
        if reader.states(*AT, "windows"):
            _check_windows(table.windows, reader)
        if len(table.aggregates.quantiles) > QUANTILES_MAX:
            reader.note((*AT, "quantiles"), f"more than {QUANTILES_MAX} quantiles")
        if len(set(table.aggregates.quantiles)) < len(table.aggregates.quantiles):
            reader.note((*AT, "quantiles"), "a quantile is named twice")
        if table.publish is not None:
            check_publish(table.publish, job, (*AT, "publish"), reader)
        return job


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
