"""The state of a job in a table: positions, tokens and totals, all as of one version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import msgspec

from penstock.flow.write.manifest import Counts
from penstock.logs.log import EpochMark, Partition, Slice


class Totals(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Counts since the origin: `position - origin = read + holes + gap` (RULES C6)."""

    read: int = 0
    written: int = 0
    quarantined: int = 0
    filtered: int = 0
    skipped: int = 0
    holes: int = 0
    gap: int = 0
    replayed: int = 0
    """Of the quarantined, those that a replay has written since."""
    deferred: int = 0
    """Of an export: read, and left to a type that lags; it goes down as the type catches up."""
    vanished: int = 0
    """Of the deferred, those that the log no longer had when their type caught up."""
    restored: int = 0
    """Of an export: counted by the logs of its types before its job log was restored."""

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, name) + getattr(other, name) for name in TOTAL_NAMES))

    @property
    def offsets(self) -> int:
        return self.read + self.holes + self.gap

    @property
    def accounted(self) -> int:
        """Records that the table accounts for."""
        return self.written + self.quarantined + self.filtered + self.skipped + self.deferred + self.vanished

    @property
    def unaccounted(self) -> int:
        """Records read but not accounted for; negative if more are accounted for than were read.

        A job that continues a restored log may read once more what was counted before.
        """
        missing = self.read + self.restored - self.accounted
        return max(0, missing - self.restored) if missing > 0 else missing

    @property
    def conserved(self) -> bool:
        return self.unaccounted == 0


TOTAL_NAMES = Totals.__struct_fields__


def slice_totals(piece: Slice, counts: Counts) -> Totals:
    """What one slice adds; offsets that are neither read nor a gap had no record."""
    return Totals(**asdict(counts), holes=piece.end - piece.read_from - counts.read, gap=piece.gap)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a part adds to the further numbers that some tables keep of a partition, by name."""

    sums: Mapping[str, int] = field(default_factory=dict)
    peaks: Mapping[str, int] = field(default_factory=dict)
    """Values that never decrease (RULES W4)."""
    latest: Mapping[str, int] = field(default_factory=dict)
    """Values that replace the earlier ones."""

    def on(self, before: Mapping[str, int]) -> dict[str, int]:
        sums = {name: before.get(name, 0) + number for name, number in self.sums.items()}
        peaks = {name: max(before.get(name, number), number) for name, number in self.peaks.items()}
        return {**before, **sums, **peaks, **self.latest}


@dataclass(frozen=True, slots=True)
class DeltaPartition:
    """The state of one partition in a Delta table. `position` is None until the start is committed (RULES P1)."""

    position: int | None = None
    origin: int | None = None
    token: int = 0
    totals: Totals = field(default_factory=Totals)
    quarantine_mark: int | None = None
    mark: EpochMark | None = None
    """The last record that was read whose leader epoch is known (RULES P3)."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The further numbers that the table keeps (`TablePlace.numbers`), if it has them."""


@dataclass(frozen=True, slots=True)
class DeltaState:
    """The state of a job in a Delta table, all as of one version."""

    version: int
    partitions: Mapping[Partition, DeltaPartition]
    fingerprints: Mapping[str, int | None]
    """Per topic, the fingerprint of the topic id that the positions belong to; None for a topic that was never read."""

    def of(self, partition: Partition) -> DeltaPartition:
        return self.partitions.get(partition, DeltaPartition())

    @property
    def tokens(self) -> dict[Partition, int]:
        return {partition: state.token for partition, state in self.partitions.items()}
