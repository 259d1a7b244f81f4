"""A WAL server as a process of its own that starts quickly: what `penstock wal serve` does, without the other commands.

Run as `python -m tests.support.wal_process FOLDER PORT RESERVE_BYTES`.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from pathlib import Path

from penstock.failpoints import ENVIRONMENT_NAME, armed, noop
from penstock.logs.wal.server import STEP, WalServer
from penstock.logs.wal.store import STEPS, WalLimits, WalStore


def main(folder: str, port: str, reserve_bytes: str) -> None:
    failpoint = armed(os.environ.get(ENVIRONMENT_NAME, ""), (*STEPS, STEP))
    at_step = noop if failpoint is None else failpoint.at_step
    signal.signal(signal.SIGTERM, lambda *_: None)
    limits = WalLimits(reserve_bytes=int(reserve_bytes), retention_seconds=0)
    with closing(WalStore(Path(folder), limits, at_step=at_step)) as store:
        server = WalServer(store, "127.0.0.1", int(port), at_step)
        print(server.url, flush=True)
        server.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
