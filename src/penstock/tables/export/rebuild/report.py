"""What came of making a lost ledger again, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.tables.export.ledger.state import LedgerState
from penstock.tables.export.rebuild.inputs import Doubt


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild found. `number` is the newest entry of the new ledger; None if a doubt kept it from being made."""

    number: int | None
    state: LedgerState | None
    files: int
    rows: int
    doubts: tuple[Doubt, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.doubts

    def as_json(self) -> dict[str, Any]:
        partitions = self.state.partitions if self.state is not None else {}
        return {
            "ok": self.ok,
            "entry": self.number,
            "files": self.files,
            "rows": self.rows,
            "partitions": [
                {
                    "topic": each.topic,
                    "topic_id": each.topic_id,
                    "partition": each.number,
                    "origin": here.origin,
                    "position": here.position,
                    "read_again": {name: lane.position for name, lane in sorted(here.lanes.items())},
                }
                for each, here in partitions.items()
            ],
            "doubts": [
                {
                    "partition": each.partition or None,
                    "offsets": each.offsets,
                    "files": list(each.files),
                    "reason": each.reason,
                }
                for each in self.doubts
            ],
            "warnings": list(self.warnings),
        }

    def lines(self) -> Iterator[str]:
        if self.state is not None:
            for each, here in self.state.partitions.items():
                yield f"{each}: from {here.origin} to {here.position}"
                for name, lane in sorted(here.lanes.items()):
                    yield f"  {name} is read again from {lane.position}"
            yield f"rebuilt as entry {self.number} from {self.files} files with {self.rows} rows"
        for warning in self.warnings:
            yield f"warning: {warning}"
        for doubt in self.doubts:
            yield _sentence(doubt)
        if self.doubts:
            yield "nothing was written"


def _sentence(doubt: Doubt) -> str:
    place = doubt.partition
    if doubt.offsets is not None:
        place += f" offsets {doubt.offsets[0]} to {doubt.offsets[1] - 1}"
    words = [part for part in (place, ", ".join(doubt.files), doubt.reason) if part]
    return f"doubt: {': '.join(words)}"
