"""A job file for people to read: as it is written, without the values of secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

HIDDEN = "******"
_SECRET = re.compile(
    r"passw|secret|token|credential|jaas|api.?key|access.?key|account.?key|ssl\.key|private|sas\b", re.IGNORECASE
)
_REFERENCE = re.compile(r"\$\{[^}]*\}")
_USER_INFO = re.compile(r"[^\s\"',/@\[{]+:[^\s\"'/@]+@")
"""A user and a password before a host."""


def without_secret_values(text: str) -> str:
    """The text with the values of secret keys hidden; references to the environment are shown, not what they refer to.

    A text that is not YAML is not shown: no one can say where its secrets are.
    """
    try:
        root = yaml.compose(text, yaml.CSafeLoader)
    except yaml.YAMLError:
        return ""
    spans = sorted({(node.start_mark.index, node.end_mark.index) for node in _secrets(root, False)}, reverse=True)
    for start, end in spans:
        if not _REFERENCE.fullmatch(text[start:end].strip("\"' \n")):
            text = text[:start] + HIDDEN + ("\n" if text[start:end].endswith("\n") else "") + text[end:]
    lines = (_USER_INFO.sub(f"{HIDDEN}@", line) for line in text.splitlines())
    return "\n".join(_without_comment(line) for line in lines)


def _secrets(node: yaml.Node | None, secret: bool) -> Iterator[yaml.Node]:
    """The scalars below keys that are named like secrets."""
    match node:
        case yaml.MappingNode():
            for key, value in node.value:
                yield from _secrets(value, secret or bool(_SECRET.search(str(key.value))))
        case yaml.SequenceNode():
            for item in node.value:
                yield from _secrets(item, secret)
        case yaml.ScalarNode() if secret:
            yield node


def _without_comment(line: str) -> str:
    """A comment about a secret may be an earlier value of it."""
    before, mark, comment = line.partition("#")
    return f"{before}# {HIDDEN}" if mark and _SECRET.search(comment) else line
