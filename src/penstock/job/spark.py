"""What cannot be right about Spark: a master that there is none of, settings that we rely on, jobs that disagree."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from penstock.errors import UserError
from penstock.job.faults import KeyPath, shown, unless_secret
from penstock.job.reader import Reader
from penstock.job.spec import JobSpec, SparkSpec

DEFAULT_MASTER = "local[*,4]"
SET_BY_PENSTOCK: Mapping[str, str] = {"spark.sql.session.timeZone": "UTC"}
"""Settings that the flow relies on: timestamps cross between Spark and Arrow as instants in UTC."""
_OTHER_KEYS: Mapping[str, str] = {
    "spark.master": "spark.master",
    "spark.sql.execution.arrow.maxBytesPerBatch": "limits.arrow_batch_bytes",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "limits.arrow_batch_bytes",
}
_LOCAL = re.compile(r"local(?:\[(?:\*|[0-9]+)(?:\s*,\s*[0-9]+)?\]|-cluster\[[0-9]+\s*,\s*[0-9]+\s*,\s*[0-9]+\])?")
_ADDRESS = r"(?:[^\s,:/\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_REMOTE = re.compile(rf"spark://{_ADDRESS}(?:,{_ADDRESS})*|yarn|k8s://\S+")

UNSHARED = "a local path, but the executors of a Spark cluster write to disks of their own"
UNSHARED_HINT = "write to s3://, hdfs:// or the like; if every executor sees this folder, as with NFS, set {key}: true"


def is_local(master: str) -> bool:
    """Whether every task runs on this machine."""
    return _LOCAL.fullmatch(master.strip()) is not None


def check_spark(job: JobSpec, reader: Reader) -> None:
    """Note a master that there is none of, settings that Penstock decides, and local paths on a cluster."""
    master = job.spark.master
    if master is not None and not is_local(master) and not _REMOTE.fullmatch(master.strip()):
        hint = "local[*], local[2,4], spark://host:7077, yarn or k8s://https://host:port"
        reader.note(("spark", "master"), f"{shown(master)} is no Spark master", hint)
    for name, value in job.spark.conf.items():
        at: KeyPath = ("spark", "conf", name)
        if not name.startswith("spark."):
            reader.note(at, "is no Spark setting", f"did you mean spark.{name}?", on_key=True)
        elif name in _OTHER_KEYS:
            reader.note(at, "is set from another key of the job file", f"state {_OTHER_KEYS[name]}", on_key=True)
        elif value != SET_BY_PENSTOCK.get(name, value):
            reader.note(at, f"must be {SET_BY_PENSTOCK[name]}: the flow relies on it", "leave it out")
    table_at: KeyPath = ("table", job.table.kind)
    if master is not None and reader.states(*table_at, "path") and is_unshared(job, master):
        reader.note((*table_at, "path"), UNSHARED, UNSHARED_HINT.format(key=f"table.{job.table.kind}.shared"))


def is_local_path(path: str) -> bool:
    return urlsplit(path.strip()).scheme.lower() in ("", "file")


def is_unshared(job: JobSpec, master: str) -> bool:
    """Whether executors of this master would write rows that no other process sees."""
    return not is_local(master) and not job.table.shared and is_local_path(job.table.path)


def refuse_unshared(job: JobSpec, master: str | None) -> None:
    """Raise `UserError` for a job whose local paths the executors of the running master do not share."""
    if master is not None and is_unshared(job, master):
        raise UserError(
            f"job {job.name}: table.{job.table.kind}.path is {UNSHARED}",
            detail=f"the master is {master}",
            hint=UNSHARED_HINT.format(key=f"table.{job.table.kind}.shared"),
        )


def contradiction(spark: SparkSpec, other: SparkSpec) -> tuple[str, str, str] | None:
    """The first key that both state differently, with both values; a process has one Spark."""
    if spark.master and other.master and spark.master != other.master:
        return "spark.master", unless_secret(spark.master), unless_secret(other.master)
    for name, value in spark.conf.items():
        if name in other.conf and other.conf[name] != value:
            return f"spark.conf.{name}", unless_secret(value), unless_secret(other.conf[name])
    return None


def contradiction_text(name: str, other_name: str, values: tuple[str, str]) -> str:
    return f"{values[0]} in job {name} and {values[1]} in job {other_name}: the jobs of one process share one Spark"


def merged_spark(jobs: Sequence[JobSpec]) -> SparkSpec:
    """The Spark of a process: what any of its jobs states. Raises `UserError` where two contradict each other."""
    for index, job in enumerate(jobs):
        for other in jobs[:index]:
            found = contradiction(job.spark, other.spark)
            if found is not None:
                raise UserError(
                    f"{found[0]}: {contradiction_text(job.name, other.name, found[1:])}",
                    hint="state the same, or run the jobs in processes of their own",
                )
    master = next((job.spark.master for job in jobs if job.spark.master), None)
    return SparkSpec(master, {name: value for job in jobs for name, value in job.spark.conf.items()})
