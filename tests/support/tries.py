"""How often tests with random input try: in `make test` their own number, in `make soak` 20 times that."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("PENSTOCK_TRIES", "1"))


def tries(count: int) -> int:
    """Seeds or examples of this run, of a test that has so many in `make test`."""
    return count * TIMES
