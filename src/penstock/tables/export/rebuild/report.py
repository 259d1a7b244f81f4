"""What came of making a lost ledger again, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from penstock.tables.export.ledger.state import LedgerState
from penstock.tables.export.rebuild.inputs import Ambiguity


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild found. `state` is that of the new ledger; None if an ambiguity prevented it."""

    files: int
    rows: int
    ambiguities: tuple[Ambiguity, ...] = ()
    state: LedgerState | None = None
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.ambiguities

    def as_json(self) -> dict[str, Any]:
        state = self.state
        return {
            "ok": self.ok,
            "entry": None if state is None else state.number,
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
                for each, here in (state.partitions if state is not None else {}).items()
            ],
            "ambiguities": [
                {**asdict(each), "partition": each.partition or None, "files": list(each.files)}
                for each in self.ambiguities
            ],
            "warnings": list(self.warnings),
        }

    def lines(self) -> Iterator[str]:
        if self.state is not None:
            for each, here in self.state.partitions.items():
                yield f"{each}: from {here.origin} to {here.position}"
                for name, lane in sorted(here.lanes.items()):
                    yield f"  {name} is read again from {lane.position}"
            yield f"rebuilt as entry {self.state.number} from {self.files} files with {self.rows} rows"
        for warning in self.warnings:
            yield f"warning: {warning}"
        for ambiguity in self.ambiguities:
            yield _sentence(ambiguity)
        if self.ambiguities:
            yield "nothing was written"


def _sentence(ambiguity: Ambiguity) -> str:
    place = ambiguity.partition
    if ambiguity.offsets is not None:
        place += f" offsets {ambiguity.offsets[0]} to {ambiguity.offsets[1] - 1}"
    words = [part for part in (place, ", ".join(ambiguity.files), ambiguity.reason) if part]
    return f"ambiguity: {': '.join(words)}"
