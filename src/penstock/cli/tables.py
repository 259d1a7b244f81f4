"""Tables on a terminal, and the text of their cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text


def table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]], left: Sequence[int] = (0,)) -> Table:
    """Columns with these numbers are left-aligned and folded if necessary, all others right-aligned."""
    result = Table(box=None, header_style="bold", pad_edge=False)
    for number, name in enumerate(headings):
        if number in left:
            result.add_column(name, overflow="fold")
        else:
            result.add_column(name, justify="right")
    for row in rows:
        result.add_row(*row)
    return result


def cell(value: object, none: str = "-") -> str:
    return none if value is None else str(value)


def duration(seconds: float) -> str:
    """Seconds in the largest unit that leaves at least two of it."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
