"""`bench claims --virtual`: what the protocol costs its members, without a broker and in virtual time.

Every member decodes and folds every record, as it does from Kafka; time passes in steps without waiting. So groups
can be measured that are too large for the machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.claims.members import client_id, fair
from penstock.claims.member.membership import MemberOptions
from penstock.claims.member.participant import Participant
from penstock.claims.protocol.codec import decode, encode
from penstock.claims.protocol.group_view import GroupView
from penstock.logs.log import Partition

HEARTBEAT_SECONDS = 10.0
STEP_SECONDS = 0.25
JOINED_PER_STEP = 10
STABLE_SECONDS_MAX = 60.0
REST_INTERVALS = 3
_GROUP = "bench"


class _Hall:
    """The members of one group, and the log that they all read."""

    def __init__(self, members: int, partitions: Sequence[Partition]) -> None:
        self.now = 0.0
        self.log: list[bytes] = []
        self._partitions = partitions
        self._coming = list(range(members))
        self._members: list[tuple[Participant, int]] = []

    def step(self) -> None:
        self.now += STEP_SECONDS
        for number in self._coming[:JOINED_PER_STEP]:
            options = MemberOptions(_GROUP, client_id(number), HEARTBEAT_SECONDS)
            participant = Participant(options, "nonce", GroupView(_GROUP, HEARTBEAT_SECONDS))
            participant.request(self._partitions, {})
            self._members.append((participant, 0))
        del self._coming[:JOINED_PER_STEP]
        appended: list[bytes] = []
        for index, (participant, read) in enumerate(self._members):
            for offset in range(read, len(self.log)):
                participant.read(offset, decode(self.log[offset], _GROUP)[0], self.now, self.now)
            self._members[index] = (participant, len(self.log))
            participant.begin(self.now)
            appended += [encode(item, _GROUP, 8) for item in participant.decide(self.now)]
        self.log += appended

    @property
    def fair(self) -> bool:
        held = [len(participant.held(self.now)) for participant, _ in self._members]
        return not self._coming and fair(held, len(self._partitions))


def virtual_cost(members: int, partitions: int) -> dict[str, float]:
    """Let members come at once, share, and rest.

    Records and CPU seconds of all members together, to fair shares and then for each second at rest.
    """
    hall = _Hall(members, [Partition("bench_claims", "benchTopicId", number) for number in range(partitions)])
    began = time.process_time()
    while not hall.fair:
        if hall.now > STABLE_SECONDS_MAX:
            raise AssertionError(f"{members} members did not share {partitions} partitions")
        hall.step()
    stable_s, stable_at, stable_records = time.process_time() - began, hall.now, len(hall.log)
    began = time.process_time()
    while hall.now < stable_at + REST_INTERVALS * HEARTBEAT_SECONDS:
        hall.step()
    rested = hall.now - stable_at
    return {
        "members": members,
        "partitions": partitions,
        "stable_records": stable_records,
        "stable_cpu_s": round(stable_s, 2),
        "stable_virtual_s": stable_at,
        "rest_records_per_s": round((len(hall.log) - stable_records) / rested, 1),
        "rest_cores": round((time.process_time() - began) / rested, 4),
    }
