"""Where the quarantine of a job lies (docs/protocol.md, "Quarantine"), worked out without Penstock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from deltalake import DeltaTable

from penstock.job.spec import JobSpec


def quarantine_url(table: str | Path, job: str, options: Mapping[str, str] | None = None) -> str:
    """Of a job that keeps its positions in this Delta table, which must exist."""
    return f"{table}/_quarantine/{job}/{DeltaTable(str(table), storage_options=dict(options or {})).metadata().id}"


def quarantine_of(job: JobSpec) -> str:
    """Of a job with one Delta table, which must exist."""
    return quarantine_url(job.table.path, job.name, job.table.storage_options)


def quarantine_folders(table: Path) -> list[Path]:
    """The quarantines of all jobs inside a local table, also of earlier incarnations of it."""
    return sorted(table.glob("_quarantine/*/*"))


def export_quarantine(job: JobSpec) -> str:
    """Of an export, which must have a job log."""
    return quarantine_url(f"{job.table.path}/_penstock/{job.name}", job.name, job.table.storage_options)


def export_quarantines(root: Path) -> list[Path]:
    """The quarantines of all jobs below a local root; a folder without a log holds only files that no commit names."""
    return sorted(log.parent for log in root.glob("_penstock/*/_quarantine/*/*/_delta_log"))
