"""The one place that names every kind of table, and reads the job files of them all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from penstock.failpoints import ENVIRONMENT_NAME, STEPS, Failpoint, armed
from penstock.job import loader
from penstock.job.spec import JobSpec, TableSpec
from penstock.logs.registry import SPECS as LOG_SPECS
from penstock.tables.delta.spec import DeltaSpec
from penstock.tables.export.spec import ExportSpec
from penstock.tables.inference import with_stored_fields
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.rollup.spec import RollupSpec

if TYPE_CHECKING:
    from penstock.peek.draft import Sections
    from penstock.peek.profile import Profile
    from penstock.tables.kind import Kind
    from penstock.tables.preview import Preview

SPECS: tuple[type[TableSpec], ...] = (DeltaSpec, ExportSpec, KeyedSpec, RollupSpec)


class Kinds(dict[str, "Kind"]):
    """The kinds of table by their key under `table:` in a job file; each is imported when it is needed."""

    def __missing__(self, name: str) -> Kind:
        kind: Kind = import_module(f"penstock.tables.{name}.kind").KIND
        self[name] = kind
        return kind

    def all(self) -> Iterator[Kind]:
        return (self[name] for name in dict.fromkeys([*(spec.kind for spec in SPECS), *self]))


KINDS = Kinds()


class Draft(Protocol):
    """The module `draft` of a kind, by which `penstock init` writes job files."""

    def suits(self, profile: Profile) -> bool:
        """Whether the records seem to be meant for this kind."""

    def draft(self, profile: Profile) -> Sections:
        """The sections of a job file. Raises `UserError` if the records cannot be written by this kind."""


class Drafts(Mapping[str, Draft]):
    """The drafts by kind, the most special first; each is imported when it is needed."""

    def __iter__(self) -> Iterator[str]:
        return (spec.kind for spec in reversed(SPECS))

    def __len__(self) -> int:
        return len(SPECS)

    def __getitem__(self, name: str) -> Draft:
        if name not in list(self):
            raise KeyError(name)
        return cast("Draft", import_module(f"penstock.tables.{name}.draft"))


DRAFTS = Drafts()


def failpoint() -> Failpoint | None:
    """The failpoint that an environment variable sets: a step of every job, or of a kind of table."""
    own = [step for kind in KINDS.all() for step in kind.steps]
    return armed(os.environ.get(ENVIRONMENT_NAME, ""), [*STEPS, *own])


def kind_of(job: JobSpec) -> Kind:
    """The kind of the job's table."""
    return KINDS[job.table.kind]


def preview_of(job: JobSpec) -> Preview:
    """The job's table as a dry run sees it, without Spark."""
    preview: Preview = import_module(f"penstock.tables.{job.table.kind}.preview").open_preview(job)
    return preview


def load_job(path: Path, env: Mapping[str, str] | None = None) -> JobSpec:
    """Read a job file; raises `JobFileError` with every fault that it has.

    `env` answers `${env:NAME}`; the process environment by default.
    """
    return load_jobs([path], env)[0]


def load_jobs(paths: Sequence[Path], env: Mapping[str, str] | None = None) -> list[JobSpec]:
    """Read the job files; raises one `JobFileError` with every fault of all of them."""
    return [with_stored_fields(job) for job in loader.load_jobs(paths, _specs(), LOG_SPECS, env)]


def check_jobs(paths: Sequence[Path], env: Mapping[str, str] | None = None) -> list[loader.CheckedFile]:
    """Check each file, and that no two of them conflict; a path given twice counts once."""
    return loader.check_jobs(paths, _specs(), LOG_SPECS, env)


def _specs() -> list[type[TableSpec]]:
    return list(dict.fromkeys([*SPECS, *(kind.spec for kind in KINDS.values())]))
