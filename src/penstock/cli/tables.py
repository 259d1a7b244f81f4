"""Tables on a terminal, the text of their cells, and values of options."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Annotated, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from penstock.errors import UserError
from penstock.job.faults import InvalidValueError
from penstock.job.kafka_types import utf8

T = TypeVar("T")
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parsed(option: str, text: str, parse: Callable[[str], T]) -> T:
    """The value of an option, which is written as in a job file."""
    try:
        return parse(text)
    except InvalidValueError as error:
        raise UserError(f"{option}: {error.message}", hint=error.hint) from None


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


def as_json(content: object) -> object:
    """What JSON has no form for: bytes as `{"text": ...}`, or as `{"base64": ...}` where they are not UTF-8."""
    match content:
        case bytes():
            text = utf8(content)
            return {"text": text} if text is not None else {"base64": base64.b64encode(content).decode()}
        case datetime():
            return instant_text(content)
        case _:
            return str(content)


def instant_text(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
