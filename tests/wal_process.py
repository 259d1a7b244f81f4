"""A WAL server as a process of its own that starts quickly: what `penstock wal serve` does, without the other commands.

Run as `python -m tests.wal_process FOLDER PORT SEGMENT_BYTES`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from penstock.failpoints import ENVIRONMENT_NAME, armed, noop
from penstock.logs.wal.limits import WalLimits
from penstock.logs.wal.server.http import STEP, WalServer
from penstock.logs.wal.store.partition import STEPS
from penstock.logs.wal.store.store import opened


def main(folder: str, port: str, segment_bytes: str) -> None:
    failpoint = armed(os.environ.get(ENVIRONMENT_NAME, ""), (*STEPS, STEP))
    reach = noop if failpoint is None else failpoint.reach
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    limits = WalLimits(segment_bytes=int(segment_bytes), retention_seconds=0)
    with opened(Path(folder), limits, reach) as store:
        server = WalServer(store, "127.0.0.1", int(port), reach)
        server.start()
        print(server.url, flush=True)
        ended.wait()
        server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
