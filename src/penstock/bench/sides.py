"""A side of a benchmark in a process of its own: it prints what it measured as its last line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from penstock.errors import TransientError

SIDE_SECONDS_MAX = 1800


def run_side(module: str, side: str, *arguments: str) -> dict[str, Any]:
    """Run `python -m MODULE SIDE ARGUMENTS...` and return what it measured."""
    command = [sys.executable, "-m", module, side, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SIDE_SECONDS_MAX, check=False)
    if done.returncode:
        raise TransientError(f"the {side} side of the benchmark failed", detail=done.stderr[-1500:])
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))
