"""Work in a process of its own: no memory, thread or JVM of the caller takes part in what it measures."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from penstock.errors import TransientError

SECONDS_MAX = 1800


def run_apart(work: Callable[..., object], *arguments: object) -> Any:
    """What the work returns, which must be serializable as JSON; TransientError if it fails."""
    command = [sys.executable, "-m", "benchmarks.apart"]
    sent = pickle.dumps((work, arguments))
    done = subprocess.run(command, input=sent, capture_output=True, timeout=SECONDS_MAX, check=False)
    if done.returncode:
        raise TransientError("a process of the benchmark failed", detail=done.stderr.decode(errors="replace")[-1500:])
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    work, arguments = pickle.load(sys.stdin.buffer)
    print(json.dumps(work(*arguments)))
