"""Runs the tests that failed in the last run once more, each with the machine to itself: `python -m tests.run_again`.

Tests with real brokers and killed processes share two cores with each other, and now and then one of their waits is too
short. What passes now is named at the end: it is to be looked at, and no reason to throw a whole run away. More than a
few failures are no accident, and are not run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILURES_MAX = 3
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    try:
        failed = sorted(json.loads(LAST_FAILED.read_text()))
    except FileNotFoundError:
        failed = []
    if not 0 < len(failed) <= FAILURES_MAX:
        print(f"{len(failed)} tests failed; up to {FAILURES_MAX} would be run again", flush=True)
        return 1
    print(f"run again, each alone: {', '.join(failed)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "pytest", *failed], check=False).returncode
    if code == 0:
        print(f"FAILED FIRST, PASSED ALONE: {', '.join(failed)}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
