"""Job files with one mistake each: the change to a good file, the command that finds it and its first line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import yaml

FILE = Path(__file__).with_suffix(".yaml")
NAME = "web.yaml"


class BrokenJob(NamedTuple):
    """A mistake: `old` of the good file became `new`."""

    old: str
    new: str
    command: str
    line: str

    def text(self, good: str) -> str:
        assert good.count(self.old) == 1, self.old
        return good.replace(self.old, self.new)


def good_file() -> str:
    """The file without a mistake."""
    content: str = yaml.safe_load(FILE.read_text(encoding="utf-8"))["file"]
    return content


def broken_jobs(command: str) -> list[BrokenJob]:
    """The mistakes that a command finds."""
    rows = yaml.safe_load(FILE.read_text(encoding="utf-8"))["mistakes"]
    chosen = [row for row in rows if row["command"] == command]
    return [BrokenJob(row["change"][0], row["change"][1], command, f"{NAME}:{row['line']}") for row in chosen]
