"""The one place that names every kind of table."""

from __future__ import annotations

import os

from penstock.failpoints import ENVIRONMENT_NAME, STEPS, Failpoint, armed
from penstock.job.spec import JobSpec
from penstock.tables.delta.kind import DeltaKind
from penstock.tables.export.kind import ExportKind
from penstock.tables.kind import Kind

KINDS: dict[str, Kind] = {kind.name: kind for kind in (DeltaKind(), ExportKind())}
"""By their key under `table:` in a job file."""


def failpoint() -> Failpoint | None:
    """What the environment of this process arms: a step of every job, or of a kind of table."""
    own = [step for kind in KINDS.values() for step in kind.steps]
    return armed(os.environ.get(ENVIRONMENT_NAME, ""), [*STEPS, *own])


def kind_of(job: JobSpec) -> Kind:
    """The kind of the job's table."""
    return KINDS[job.table.kind]
