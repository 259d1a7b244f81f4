"""Reconciliation of log and tables."""

from penstock.proof.findings import Check, PartitionFacts, Unproven, Verdict, VerifyReport, Violation, ViolationKind
from penstock.proof.sources import Sample
from penstock.verify.verification import verify

__all__ = [
    "Check",
    "PartitionFacts",
    "Sample",
    "Unproven",
    "Verdict",
    "VerifyReport",
    "Violation",
    "ViolationKind",
    "verify",
]
