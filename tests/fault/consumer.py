"""A consumer for fault tests: writes one line for each record it sees, and dies or stops at a given place.

python -m tests.fault.consumer BOOTSTRAP GROUP TOPIC CLIENT_ID DELIVERY PATH [SIGNAL]

The signal (KILL, STOP) is sent to itself once, in the middle of a batch: behind the line and before the record is done.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from penstock.claims import LostClaimError, Member
from tests.support.members import COORDINATION, HEARTBEAT_SECONDS

RECORDS_BEFORE_SIGNAL = 60
BATCH_RECORDS_MIN = 10
PLACE_IN_BATCH = 4
RECORD_SECONDS = 0.01


def main(bootstrap: str, group: str, topic: str, client_id: str, delivery: str, path: str, name: str = "") -> None:
    lines = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    number = getattr(signal, f"SIG{name}") if name else None
    delivered = 0
    with Member(
        bootstrap,
        group=group,
        topics=[topic],
        client_id=client_id,
        delivery=delivery,  # type: ignore[arg-type]
        heartbeat_seconds=HEARTBEAT_SECONDS,
        in_flight_max=40,
        coordination=COORDINATION,
    ) as member:
        while True:
            works = member.poll(1.0)
            for place, work in enumerate(works):
                os.write(lines, f"saw {work.partition.number} {work.offset}\n".encode())
                delivered += 1
                time.sleep(RECORD_SECONDS)
                in_the_middle = len(works) >= BATCH_RECORDS_MIN and place == PLACE_IN_BATCH
                if number is not None and in_the_middle and delivered > RECORDS_BEFORE_SIGNAL:
                    os.kill(os.getpid(), number)
                    number = None
                try:
                    member.done(work)
                except LostClaimError:
                    os.write(lines, f"refused {work.partition.number} {work.offset}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
