"""What a compaction or a vacuum did, for people and for programs, whatever kind of table it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol, Self

from penstock.lake.compaction import Merged


class Report(Protocol):
    """What a command prints when it is done."""

    def as_json(self) -> dict[str, Any]: ...

    def lines(self) -> Iterator[str]:
        """The report for people."""


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did; `dropped` groups lost a file to another writer, or another commit came first."""

    files_removed: int = 0
    files_added: int = 0
    rows: int = 0
    size_bytes_before: int = 0
    size_bytes_after: int = 0
    commits: int = 0
    dropped: int = 0
    left: int = 0
    """Groups beyond the byte limit of this compaction."""
    failed: tuple[str, ...] = ()
    """Types that could not be compacted, each with the reason; the others were."""

    @classmethod
    def of(cls, tried: int, landed: Sequence[Merged[Any]]) -> Self:
        """The report of one commit: how many groups it tried to swap, and those that it swapped."""
        outputs = [file for swap in landed for file in swap.outputs]
        return cls(
            files_removed=sum(len(swap.group.files) for swap in landed),
            files_added=len(outputs),
            rows=sum(file.rows for file in outputs),
            size_bytes_before=sum(swap.group.size_bytes for swap in landed),
            size_bytes_after=sum(file.size_bytes for file in outputs),
            commits=1 if landed else 0,
            dropped=tried - len(landed),
        )

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        done = (
            f"{self.files_removed} files became {self.files_added}, {self.rows} rows, "
            f"{self.size_bytes_before} bytes became {self.size_bytes_after}"
        )
        dropped = (f"{self.dropped} groups left to another writer",) if self.dropped else ()
        yield "; ".join((done if self.files_removed else "nothing to compact", *dropped))
        yield from (f"not compacted: {reason}" for reason in self.failed)


@dataclass(frozen=True, slots=True)
class Deleted:
    """A file that was deleted, or would be in a dry run."""

    table: str
    """Its url."""
    path: str
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """What a vacuum deleted, and how many files stay by the reason."""

    deleted: tuple[Deleted, ...]
    kept: Mapping[str, int]
    dry_run: bool = False
    failed: tuple[str, ...] = ()
    """Types that could not be vacuumed, each with the reason; the others were."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.deleted)

    def as_json(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "deleted": [asdict(file) for file in self.deleted],
            "size_bytes": self.size_bytes,
            "kept": dict(self.kept),
            "failed": list(self.failed),
        }

    def lines(self) -> Iterator[str]:
        for file in self.deleted:
            yield f"{file.table}/{file.path}: {file.reason}"
        yield f"{len(self.deleted)} files {'would go' if self.dry_run else 'deleted'}, {self.size_bytes} bytes"
        for reason, count in sorted(self.kept.items()):
            yield f"{count} kept: {reason}"
        yield from (f"not vacuumed: {reason}" for reason in self.failed)
