"""The one place that names every kind of table."""

from __future__ import annotations

from penstock.job.spec import JobSpec
from penstock.tables.delta.kind import DeltaKind
from penstock.tables.export.kind import ExportKind
from penstock.tables.kind import Kind

KINDS: dict[str, Kind] = {kind.name: kind for kind in (DeltaKind(), ExportKind())}
"""By their key under `table:` in a job file."""


def kind_of(job: JobSpec) -> Kind:
    """The kind of the job's table."""
    return KINDS[job.table.kind]
