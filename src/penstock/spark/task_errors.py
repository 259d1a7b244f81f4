"""Errors of ours that a Spark task raised, out of the text in which Spark hands them to the driver."""

from __future__ import annotations

import re

from penstock.errors import FencedError, InvariantError, OutcomeUnknownError, PenstockError, TransientError, UserError

_BRANCHES = (UserError, TransientError, FencedError, OutcomeUnknownError, InvariantError)
_TOLD = re.compile(
    r"^penstock\.[\w.]*?(?P<name>\w+Error): (?P<primary>.*)"
    r"(?:\n  detail: (?P<detail>.*(?:\n(?!  hint: |\s*$|\tat ).*)*))?"
    r"(?:\n  hint: (?P<hint>.*))?",
    re.MULTILINE,
)


def task_error(error: Exception) -> PenstockError | None:
    """The error of ours that failed a Spark job, as its branch of the tree; None if a task failed otherwise."""
    text = str(getattr(error, "_desc", None) or error)
    # The last one is what left the task; those before it are its causes.
    told = next(reversed(list(_TOLD.finditer(text))), None)
    branch = None if told is None else _branch(told["name"])
    if told is None or branch is None:
        return None
    return branch(told["primary"], detail=told["detail"] or "", hint=told["hint"] or "")


def _branch(name: str) -> type[PenstockError] | None:
    found = next((each for each in _family(PenstockError) if each.__name__ == name), None)
    return next((branch for branch in _BRANCHES if found is not None and issubclass(found, branch)), None)


def _family(root: type[PenstockError]) -> list[type[PenstockError]]:
    return [root, *(each for child in root.__subclasses__() for each in _family(child))]
