"""The pages of the documentation: their fenced blocks, commands, links and headings.

A comment before a block states how tests use it:

<!-- run in FOLDER -->       the block is run in a copy of the example, after the commands of the example's own page
<!-- run in a new folder --> the block is run in an empty folder
<!-- file PATH -->           the block is the content of this file, which is run elsewhere
<!-- completes PATH -->      the block replaces keys of this job file
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command

from penstock.cli.app import LazyVerb, app

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/adr/*.md"), *ROOT.glob("examples/**/*.md")]
)
NEW_FOLDER = "a new folder"
_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>.+?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_HEREDOC = re.compile(r"^.*<<'(\w+)'\n[\s\S]*?^\1$", re.MULTILINE)
_COMMAND = re.compile(rf"{_HEREDOC.pattern}|^for [\s\S]*?^done$|^.+$", re.MULTILINE)
_PENSTOCK = re.compile(r"(?<![\w./-])penstock ([^|;&<>()\n]*)")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    note: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def noted(self, word: str) -> str:
        """The rest of the note after this word; empty if the note begins with another word."""
        return self.note.removeprefix(f"{word} ") if self.note.startswith(f"{word} ") else ""

    @property
    def folder(self) -> str:
        """The example in whose folder the block is run, or `NEW_FOLDER`; empty if it is not run."""
        if self.language == "sh" and self.page.parent.parent == EXAMPLES:
            return str(self.page.parent.relative_to(ROOT))
        return self.noted("run in")


def blocks(language: str = "") -> list[Block]:
    """The fenced blocks of all pages, or those of one language."""
    return [
        Block(page, text.count("\n", 0, match.start("text")), match["language"], match["note"] or "", match["text"])
        for page in PAGES
        for text in [page.read_text(encoding="utf-8")]
        for match in _BLOCK.finditer(text)
        if language in ("", match["language"])
    ]


def shell_commands(text: str) -> list[str]:
    """The commands of a shell block; a loop or a here-document is one of them."""
    joined = re.sub(r"\\\n\s+", "", text)
    return [match[0] for match in _COMMAND.finditer(joined)]


def penstock_commands(text: str) -> Iterator[list[str]]:
    """The arguments of each `penstock` command in a shell block."""
    joined = re.sub(r"\\\n\s+", "", _HEREDOC.sub("", text))
    for match in _PENSTOCK.finditer(joined):
        yield shlex.split(match[1], comments=True)


def parse_command(arguments: list[str]) -> tuple[str, frozenset[str]]:
    """The name of a command and its options, after the real parser has accepted the arguments."""
    command, rest, names = resolve_command(arguments)
    command.make_context(" ".join(names), list(rest))
    options = frozenset(word.partition("=")[0] for word in rest if re.match(r"-\w|--\w", word))
    return " ".join(names), options


def resolve_command(arguments: list[str]) -> tuple[Any, list[str], list[str]]:
    """The command that arguments name, the other arguments, and its name; fails if there is no such command."""
    command = _penstock()
    rest, names = list(arguments), list[str]()
    while rest and is_group(command):
        assert rest[0] in command.commands, f"penstock {' '.join(names)} has no command {rest[0]}"
        command = command.commands[rest[0]]
        command = command.load() if isinstance(command, LazyVerb) else command
        names.append(rest.pop(0))
    return command, rest, names


def is_group(command: Any) -> bool:
    """Whether a command has commands of its own."""
    return hasattr(command, "commands")


@cache
def _penstock() -> Any:
    """The real command line, as an object of the click that typer brings."""
    return get_command(app)


def inline_commands(text: str) -> Iterator[list[str]]:
    """The arguments of each `penstock` command in inline code; they may have placeholders and be incomplete."""
    prose = re.sub(r"^```[\s\S]*?^```$", "", text, flags=re.MULTILINE)
    for match in re.finditer(r"`penstock ([^`]+)`", prose):
        yield match[1].replace("\n", " ").split()


def links(text: str) -> list[str]:
    """The targets of links in prose, without those to other sites."""
    prose = re.sub(r"^```[\s\S]*?^```$", "", text, flags=re.MULTILINE)
    return [target for target in _LINK.findall(prose) if "://" not in target]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    prose = re.sub(r"^```[\s\S]*?^```$", "", text, flags=re.MULTILINE)
    names: list[str] = []
    for heading in re.findall(r"^#{1,6} (.+?)\s*$", prose, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        names.append(f"{name}-{names.count(name)}" if name in names else name)
    return set(names)
