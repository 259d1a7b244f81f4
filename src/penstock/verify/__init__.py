"""Reconciliation of log and tables."""

from penstock.verify.findings import Check, Offence, OffenceKind, PartitionFacts, VerifyReport
from penstock.verify.verification import verify

__all__ = ["Check", "Offence", "OffenceKind", "PartitionFacts", "VerifyReport", "verify"]
