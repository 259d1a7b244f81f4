"""The one place that names every kind of table, and reads the job files of them all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.failpoints import ENVIRONMENT_NAME, STEPS, Failpoint, armed
from penstock.job import loader
from penstock.job.spec import JobSpec, TableSpec
from penstock.logs.registry import SPECS
from penstock.tables.delta.kind import DeltaKind
from penstock.tables.export.kind import ExportKind
from penstock.tables.keyed.kind import KeyedKind
from penstock.tables.kind import Kind
from penstock.tables.rollup.kind import RollupKind

_KINDS: tuple[Kind, ...] = (DeltaKind(), ExportKind(), KeyedKind(), RollupKind())
KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}
"""By their key under `table:` in a job file."""


def failpoint() -> Failpoint | None:
    """The failpoint that an environment variable sets: a step of every job, or of a kind of table."""
    own = [step for kind in KINDS.values() for step in kind.steps]
    return armed(os.environ.get(ENVIRONMENT_NAME, ""), [*STEPS, *own])


def kind_of(job: JobSpec) -> Kind:
    """The kind of the job's table."""
    return KINDS[job.table.kind]


def load_job(path: Path, env: Mapping[str, str] | None = None) -> JobSpec:
    """Read a job file; raises `JobFileError` with every fault that it has.

    `env` answers `${env:NAME}`; the process environment by default.
    """
    return load_jobs([path], env)[0]


def load_jobs(paths: Sequence[Path], env: Mapping[str, str] | None = None) -> list[JobSpec]:
    """Read the job files; raises one `JobFileError` with every fault of all of them."""
    return loader.load_jobs(paths, _specs(), SPECS, env)


def check_jobs(paths: Sequence[Path], env: Mapping[str, str] | None = None) -> list[loader.CheckedFile]:
    """Check each file, and that no two of them conflict; a path given twice counts once."""
    return loader.check_jobs(paths, _specs(), SPECS, env)


def _specs() -> list[type[TableSpec]]:
    return [kind.spec for kind in KINDS.values()]
