"""Tables on a terminal, and what stands in their cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text


def table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]], left: Sequence[int] = (0,)) -> Table:
    """Columns with these numbers are aligned to the left and folded if need be, all others to the right."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for number, name in enumerate(headings):
        if number in left:
            made.add_column(name, overflow="fold")
        else:
            made.add_column(name, justify="right")
    for row in rows:
        made.add_row(*row)
    return made


def cell(value: object, none: str = "-") -> str:
    return none if value is None else str(value)


def duration(seconds: float) -> str:
    """Seconds in the largest unit that leaves at least two of it."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
