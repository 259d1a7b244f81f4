"""What the job file of a single Delta table states, frozen."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.lake.delta.schema import TablePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpec(TablePlace):
    kind = "delta"
