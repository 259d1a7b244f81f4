"""Where a Delta table lies, and how it is laid out if it has to be created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.job.spec import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace(TableSpec):
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
