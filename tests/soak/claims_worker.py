"""python -m tests.soak.claims_worker BOOTSTRAP TOPIC CLIENT_ID HEARTBEAT_SECONDS FILE: one process of the chaos.

It is a member of two groups over one topic, at least once and at most once, and appends what it executes to a file:
`x GROUP PARTITION OFFSET`. A claim that it had, did not have for a while and has again under the same token is a pause:
`p FROM SECONDS`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from penstock.claims import CoordinationOptions, LostClaimError, Member
from penstock.errors import PenstockError
from penstock.events import Event
from penstock.logs.log import Partition

COORDINATION = CoordinationOptions("__chaos", 2)
AT_LEAST_ONCE, AT_MOST_ONCE = "least", "most"
PAUSE_SECONDS_MIN = 0.2


class Pauses:
    """Measures how long a held partition could not be worked on, though its claim was never lost."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._measured_at: dict[tuple[Partition, int], float] = {}

    def look(self, member: Member) -> None:
        now = time.monotonic()
        for claim in member.held().items():
            before = self._measured_at.get(claim, now)
            if now - before > PAUSE_SECONDS_MIN:
                os.write(self._file, f"p {time.time() - (now - before):.3f} {now - before:.3f}\n".encode())
            self._measured_at[claim] = now


def _ignore(event: Event) -> None:
    """Only the file counts."""


def work(member: Member, group: str, file: int, stop: threading.Event) -> None:
    """Execute records until the process ends; what ends the member ends the process, and it is started again."""
    try:
        with member:
            while not stop.is_set():
                for item in member.poll(0.05, count_max=50):
                    os.write(file, f"x {group} {item.partition.number} {item.offset}\n".encode())
                    try:
                        member.done(item)
                    except LostClaimError:
                        continue
    except PenstockError as error:
        os.write(file, f"e {group} {error.primary}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


def main(bootstrap: str, topic: str, client_id: str, heartbeat_seconds: str, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    members = {
        group: Member(
            bootstrap,
            group=group,
            topics=[topic],
            client_id=client_id,
            delivery="at_least_once" if group == AT_LEAST_ONCE else "at_most_once",
            heartbeat_seconds=float(heartbeat_seconds),
            coordination=COORDINATION,
            listener=_ignore,
        )
        for group in (AT_LEAST_ONCE, AT_MOST_ONCE)
    }
    threads = [threading.Thread(target=work, args=(item, group, file, stop)) for group, item in members.items()]
    for thread in threads:
        thread.start()
    pauses = {group: Pauses(file) for group in members}
    while not stop.wait(0.05):
        for group, member in members.items():
            try:
                pauses[group].look(member)
            except PenstockError:
                continue
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
