"""What `verify` proves of an export."""

from __future__ import annotations

from penstock.job.spec import JobSpec
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Proof
from penstock.proof.sources import Depth
from penstock.tables.export.spec import ExportSpec


def prove_export(job: JobSpec[ExportSpec], depth: Depth, open_log: OpenLog) -> Proof:
    raise NotImplementedError
