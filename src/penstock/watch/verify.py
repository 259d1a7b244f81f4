"""`verify`: proves that a table and its log agree, record by record if the rows carry their place (I2, I3)."""

from __future__ import annotations

from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.logs.log import SliceShrankError
from penstock.logs.registry import OpenLog
from penstock.logs.registry import open_log as open_log_of
from penstock.proof.findings import Check, Unproven, Verdict, VerifyReport, Violation, ViolationKind
from penstock.proof.subject import OFFSETS_PER_PASS_MAX, Depth, GoneError, Progress, Sample
from penstock.reporting.model import shown_path
from penstock.tables.registry import kind_of

__all__ = [
    "Check", "Sample", "Unproven", "Verdict", "VerifyReport", "Violation", "ViolationKind", "verify",
]  # fmt: skip

ATTEMPTS_MAX = 5
"""How often a verification runs if files are vacuumed, or records deleted, while it reads them."""


def verify(
    job: JobSpec,
    deep: bool = True,
    progress: Progress | None = None,
    offsets_per_pass_max: int = OFFSETS_PER_PASS_MAX,
    values: Sample | None = None,
    open_log: OpenLog = open_log_of,
    published: bool = False,
) -> VerifyReport:
    """Check a job's table against itself and its log.

    `deep` also reads the offsets of the log's records; with `values` records are decoded again and compared.
    `published` also compares the topic that the table is published to.
    """
    if published and getattr(job.table, "publish", None) is None:
        raise UserError(
            f"job {job.name} does not publish its table",
            hint="--published compares a table with the topic that its `publish` section names; remove it",
        )
    depth = Depth(deep, progress, offsets_per_pass_max, values, published)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            proof = kind_of(job).prove(job, depth, open_log)
            return VerifyReport(proof.version, proof.checks, job=job.name, table=shown_path(job), deep=deep)
        except (GoneError, SliceShrankError):
            if attempt == ATTEMPTS_MAX:
                raise
    raise AssertionError("the last attempt returns or raises")
