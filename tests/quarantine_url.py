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
