"""Reconciliation of log and tables."""

from penstock.proof.findings import Check, Offence, OffenceKind, PartitionFacts, Unproven, Verdict, VerifyReport
from penstock.proof.sources import Sample
from penstock.verify.verification import verify

__all__ = [
    "Check",
    "Offence",
    "OffenceKind",
    "PartitionFacts",
    "Sample",
    "Unproven",
    "Verdict",
    "VerifyReport",
    "verify",
]
