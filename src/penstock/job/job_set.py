"""Several job files at once: each checked alone, then against the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.job.checks.spark import UNSHARED, UNSHARED_HINT, contradiction, contradiction_text, is_unshared
from penstock.job.faults import Fault, JobFileError
from penstock.job.loader import load_job
from penstock.job.spec import ExportSpec, JobSpec


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A job file with its spec, or with its faults."""

    path: Path
    spec: JobSpec | None
    faults: tuple[Fault, ...] = ()


def check_jobs(paths: Sequence[Path], env: Mapping[str, str] | None = None) -> list[CheckedFile]:
    """Check each file, and that no two of them get in each other's way; a path given twice counts once."""
    results: list[CheckedFile] = []
    for path in dict.fromkeys(paths):
        try:
            spec = load_job(path, env)
        except JobFileError as error:
            results.append(CheckedFile(path, None, error.faults))
            continue
        earlier = [(each.path, each.spec) for each in results if each.spec is not None]
        clashes = (_clash(path, spec, other_path, other) for other_path, other in earlier)
        results.append(CheckedFile(path, spec, tuple(fault for fault in clashes if fault is not None)[:1]))
    return results


def load_jobs(paths: Sequence[Path], env: Mapping[str, str] | None = None) -> list[JobSpec]:
    """Read the job files; raises one `JobFileError` with every fault of all of them."""
    results = check_jobs(paths, env)
    faults = [fault for result in results for fault in result.faults]
    if faults:
        raise JobFileError(faults)
    return [result.spec for result in results if result.spec is not None]


def _clash(path: Path, job: JobSpec, other_path: Path, other: JobSpec) -> Fault | None:
    """What the two jobs cannot share. Paths of tables are not named: they may be secrets."""
    if (job.name, job.table.path) == (other.name, other.table.path):
        message = f"the same job name and table as in {other_path}: both would move the same positions"
        return Fault(str(path), 1, 1, "job", message, "give one of them another name")
    spark = _spark_clash(path, job, other_path, other)
    if spark is not None:
        return spark
    if not isinstance(job.table, ExportSpec) and not isinstance(other.table, ExportSpec):
        return None
    if _lies_in(job, other) or _lies_in(other, job):
        message = f"a table of this job and one in {other_path} lie one inside the other: readers would see both"
        return Fault(str(path), 1, 1, "table", message, "put them side by side")
    if job.table.path == other.table.path and (
        not isinstance(job.table, ExportSpec) or not isinstance(other.table, ExportSpec)
    ):
        message = f"the table in {other_path} lies in the same folder, and one of both is an export"
        return Fault(str(path), 1, 1, "table", message, "give each a folder of its own")
    if job.table.path == other.table.path and _same_names(job, other):
        message = f"the same root as in {other_path}, under the same file names"
        return Fault(str(path), 1, 1, "table.export", message, "give each cluster a name, or each job its own root")
    return None


def _spark_clash(path: Path, job: JobSpec, other_path: Path, other: JobSpec) -> Fault | None:
    """What the two cannot share of the one Spark that their process has."""
    found = contradiction(job.spark, other.spark)
    if found is not None:
        message = f"{contradiction_text(job.name, other.name, found[1:])} ({other_path})"
        return Fault(str(path), 1, 1, found[0], message, "state the same, or run the jobs in processes of their own")
    for each, master in ((job, other.spark.master), (other, job.spark.master)):
        if master is not None and is_unshared(each, master):
            key = f"table.{each.table.kind}"
            message = f"job {each.name} has {UNSHARED}, as the other job of the process states ({other_path})"
            return Fault(str(path), 1, 1, f"{key}.path", message, UNSHARED_HINT.format(key=f"{key}.shared"))
    return None


def _lies_in(job: JobSpec, other: JobSpec) -> bool:
    """Whether a table or quarantine of the job is below a table of the other; an export's root holds many."""
    return any(place.startswith(f"{other.table.path}/") for place in (job.table.path, job.table.quarantine_path))


def _same_names(job: JobSpec, other: JobSpec) -> bool:
    """Whether two exports could give files the same names, as far as stated topics tell it."""
    assert isinstance(job.table, ExportSpec) and isinstance(other.table, ExportSpec)
    return job.table.cluster == other.table.cluster and not set(job.log.topics).isdisjoint(other.log.topics)
