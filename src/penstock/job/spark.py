"""Checks of the `spark` section: settings that Penstock relies on, jobs that disagree, local paths."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from penstock.errors import UserError
from penstock.job.faults import KeyPath, unless_secret
from penstock.job.reader import SpecReader
from penstock.job.spec import JobSpec, SparkSpec

DEFAULT_MASTER = "local[*,4]"
SET_BY_PENSTOCK: Mapping[str, str] = {"spark.sql.session.timeZone": "UTC"}
"""Settings that the flow relies on: timestamps cross between Spark and Arrow as instants in UTC."""
_OTHER_KEYS = frozenset({
    "spark.master", "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch",
})  # fmt: skip
"""Settings that Penstock derives itself."""
_LOCAL = re.compile(r"local(?:\[(?:\*|[0-9]+)(?:\s*,\s*[0-9]+)?\]|-cluster\[[0-9]+\s*,\s*[0-9]+\s*,\s*[0-9]+\])?")


def is_local(master: str) -> bool:
    """Whether every task runs on this machine."""
    return _LOCAL.fullmatch(master.strip()) is not None


def check_spark(job: JobSpec, reader: SpecReader) -> None:
    """Note settings that Penstock decides, and a local path on a cluster; Spark itself refuses an unknown master."""
    master = job.spark.master
    for name, value in job.spark.conf.items():
        at: KeyPath = ("spark", "conf", name)
        if not name.startswith("spark."):
            reader.note(at, "is not a Spark setting", f"did you mean spark.{name}?", on_key=True)
        elif name in _OTHER_KEYS:
            reader.note(at, "is set by Penstock", "remove it; the key spark.master sets the master", on_key=True)
        elif value != SET_BY_PENSTOCK.get(name, value):
            reader.note(at, f"must be {SET_BY_PENSTOCK[name]}: Penstock relies on it", "remove it")
    if master is not None and reader.states("table", job.table.kind, "path"):
        try:
            refuse_unshared(job, master)
        except UserError as error:
            reader.note(("table", job.table.kind, "path"), error.primary, error.hint)


def refuse_unshared(job: JobSpec, master: str | None) -> None:
    """Raise `UserError` for a local path that executors of the master would write to their own disks.

    A path written as file:/// is a folder that all of them share.
    """
    if master is not None and not is_local(master) and "://" not in job.table.path:
        raise UserError(
            f"job {unless_secret(job.name)}: a local path, but executors of a cluster write to their own disks",
            detail=f"the master is {unless_secret(master)}",
            hint="write to s3://, hdfs:// or the like; if all see this folder, as with NFS, write it as file:///",
        )


def merged_spark(jobs: Sequence[JobSpec]) -> SparkSpec:
    """The Spark of a process: what any of its jobs states. Raises `UserError` where two contradict each other."""
    merged: dict[str, str] = {}
    for job in jobs:
        stated = dict(job.spark.conf)
        if job.spark.master:
            stated["spark.master"] = job.spark.master
        for name, value in stated.items():
            if merged.setdefault(name, value) != value:
                other = unless_secret(merged[name])
                raise UserError(
                    f"{name} is {unless_secret(value)} in job {unless_secret(job.name)}, and {other} in another job",
                    detail="the jobs of one process share one Spark session",
                    hint="state the same value, or run the jobs in separate processes",
                )
    return SparkSpec(merged.pop("spark.master", None), merged)
