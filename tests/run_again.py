"""Ends a run of the suite: `python -m tests.run_again EXIT_CODE` runs tests that failed in it once more, each alone.

Tests with real brokers and killed processes share two cores with each other, and now and then one of their waits is too
short. Tests that pass alone are listed at the end and counted. A test that needs this in two runs in a row is a
failure, and so are more than a few failures at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

FAILURES_MAX = 3
TESTS_FAILED = 1
"""Pytest's exit code for a run in which tests failed."""
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
SAVED = Path(".pytest_cache/run_again.json")
"""The tests that passed alone in the last run, or did so before and failed again; how often each did in all runs."""


def main(exit_code: int) -> int:
    saved = _read(SAVED)
    last, counts = saved.get("last", []), Counter(saved.get("counts", {}))
    failed = sorted(_read(LAST_FAILED)) if exit_code == TESTS_FAILED else []
    if again := [test for test in failed if test in last]:
        print(f"FAILED IN TWO RUNS IN A ROW: {', '.join(again)}", flush=True)
    elif 0 < len(failed) <= FAILURES_MAX:
        print(f"run again, each alone: {', '.join(failed)}", flush=True)
        exit_code = subprocess.run([sys.executable, "-m", "pytest", *failed], check=False).returncode
    elif failed:
        print(f"{len(failed)} tests failed; up to {FAILURES_MAX} would be run again", flush=True)
    passed = failed if exit_code == 0 else []
    counts.update(passed)
    for test in passed:
        print(f"FAILED FIRST, PASSED ALONE: {test} ({counts[test]} times so far)", flush=True)
    SAVED.parent.mkdir(exist_ok=True)
    SAVED.write_text(json.dumps({"last": [*passed, *again], "counts": counts}))
    return exit_code


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return content


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
