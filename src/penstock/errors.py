"""Every error that Penstock raises, grouped by what the caller does next.

PenstockError
├── UserError             fix the job, the topic or the permissions       exit 2
│   ├── JobFileError      all faults of a job file together
│   └── NoFieldsYetError  wait for records, if the job runs
├── TransientError        retry, with a bound                             exit 75
│   └── UnreachableError  end, if the process has done no work yet        exit 75
├── FencedError           another process owns the partition: stop        exit 4
├── OutcomeUnknownError   the commit may have happened: read it back      exit 75
└── InvariantError        a bug or a damaged table: crash                 exit 70

Verdicts are not errors: `penstock verify` exits with 1 if an invariant is violated, with 3 if something is not proven.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

WHAT_TO_DO = (
    "this is a bug in Penstock or a damaged table, and retrying does not help: stop the job, run "
    "`penstock verify JOB`, and report this error with its output; committed rows are not changed"
)
"""The hint of an error that has no better one, with exit code 70."""


class PenstockError(Exception):
    """The root: a primary line, the detail, and a hint that a person can act on."""

    exit_code: ClassVar[int] = 1

    def __init__(self, primary: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(primary)
        self.primary = primary
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.primary]
        if self.detail:
            lines.append(f"  detail: {self.detail}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    @property
    def reason(self) -> str:
        """In one line, for a list of failures: what happened, and what to do about it."""
        return f"{self.primary}; {self.hint}" if self.hint else self.primary


class UserError(PenstockError):
    """Something that a person must change: retrying does not help."""

    exit_code = 2


class NoFieldsYetError(UserError):
    """`schema: infer` has no record yet that shows a field."""


class TransientError(PenstockError):
    """A failure outside of Penstock that may pass by itself."""

    exit_code = 75


class UnreachableError(TransientError):
    """A server does not answer: probably a wrong setting when a process starts, an outage later."""


class FencedError(PenstockError):
    """Another process has moved the position or holds a newer token: this one must stop."""

    exit_code = 4


class OutcomeUnknownError(PenstockError):
    """A commit may or may not have happened; the table has to be read back before anything else."""

    exit_code = 75


class InvariantError(PenstockError):
    """An invariant is violated: by a bug in Penstock, or by damage to the table."""

    exit_code = 70

    def __init__(self, primary: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(primary, detail=detail, hint=hint or WHAT_TO_DO)


def near_words(name: str, candidates: Iterable[str], count_max: int = 1) -> list[str]:
    """The candidates most similar to a name, the best first; upper and lower case do not matter."""
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    return [by_folded[near] for near in difflib.get_close_matches(name.casefold(), by_folded, count_max)]


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """A hint with the candidate most similar to a name, or an empty text."""
    return "".join(f"did you mean {near}?" for near in near_words(name, candidates))
