"""`penstock run` as a process of its own, heard by its events: what the demo and the benchmarks start and kill."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import InvariantError, TransientError


@contextmanager
def penstock_run(job_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A running job; killed at the end if it still runs."""
    command = [sys.executable, "-m", "penstock.cli", "run", str(job_path), "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for_event(process: subprocess.Popen[str], name: str) -> None:
    """Read the process's events up to one of that name; TransientError if it ends before."""
    if process.stdout is None:
        raise InvariantError("the run has no standard output")
    for line in process.stdout:
        if line.startswith("{") and json.loads(line).get("event") == name:
            return
    raise TransientError(f"penstock run ended before '{name}'")
