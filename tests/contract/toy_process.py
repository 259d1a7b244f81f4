"""python -m tests.contract.toy_process run|compact FOLDER: a job of the toy kind in a process that can be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.environment import Environment
from penstock.tables.kind import CompactRequest
from penstock.tables.registry import KINDS, failpoint, kind_of
from tests.contract.kinds import Subject, toy
from tests.contract.toy import ToyKind


def filled(folder: Path) -> Subject:
    """The same log in every process."""
    result = toy(folder)
    result.fill(8)
    return result


def main(command: str, folder: str) -> None:
    KINDS[ToyKind.name] = ToyKind()
    subject, armed = filled(Path(folder)), failpoint()
    environment = Environment() if armed is None else Environment(at_step=armed.at_step)
    if command == "compact":
        kind_of(subject.job).compact(subject.job, CompactRequest(), environment, None)
    else:
        subject.run(environment)


if __name__ == "__main__":
    main(*sys.argv[1:])
