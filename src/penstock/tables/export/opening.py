"""The table of a routed job in the format that the job asks for."""

from __future__ import annotations

from penstock.environment import Environment
from penstock.job.spec import JobSpec
from penstock.tables.export.delta_types import DeltaTypes
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.table import ExportTable


def open_export(job: JobSpec[ExportSpec], environment: Environment) -> ExportTable:
    kind = DeltaTypes if job.table.format == "delta" else ExportTable
    return kind(job, environment)
