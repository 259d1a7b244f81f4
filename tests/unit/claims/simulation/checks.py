"""What must hold of a simulated group at every record and at every moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import (
    BalancingGroup,
    ClaimingPartition,
    ForgettingMember,
    FreeingPartition,
    JoiningGroup,
    MemberId,
    Record,
    ReleaseGroup,
    ResumingGroup,
    Seeking,
)
from penstock.claims.protocol.state import Claim, GroupState
from penstock.logs.log import Partition
from tests.support.coordination import INTERVAL
from tests.unit.claims.simulation.coordination_log import Entry
from tests.unit.claims.simulation.model_table import ViolationError
from tests.unit.claims.simulation.processes import Process

ADMIN = MemberId("admin", "admin")


class Checks:
    """Follows the log and the processes; raises `ViolationError` with the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.takeovers = 0
        self.quiet: frozenset[MemberId] | None = None
        """Processes without a fault: none of them may be declared gone. None while everything is allowed."""
        self._fair = True
        """Whether the target shares equally: not where a partition was freed."""
        self._forced_at: dict[Partition, float] = {}
        self._lost_at = float("-inf")
        self._intervals: dict[MemberId, float] = {}
        self._pauses: dict[str, tuple[float, float]] = {}

    def fail(self, what: str) -> None:
        raise ViolationError(f"seed {self.seed}: {what}")

    def lost(self, now: float) -> None:
        """The log is lost; another one begins with nothing."""
        self._lost_at = now
        self._pauses = {}

    # at every record

    def step(self, entry: Entry, old: GroupState, refusal: str | None, now: float, stepped_at: float) -> None:
        record, new = entry.record, entry.behind
        for partition, claim in new.claims.items():
            if old.claim(partition) is not claim:
                self._claim(partition, old.claim(partition), claim, record, new)
        if refusal is not None:
            return
        match record:
            case ClaimingPartition() if old.pauses:
                self.fail(f"{record} was accepted in a pause")
            case BalancingGroup():
                self._fair = all(item.freed_from is None for item in old.claims.values())
            case JoiningGroup():
                self._joined(record, new)
            case ForgettingMember():
                self._forgotten(record, old, now)
            case FreeingPartition():
                self._forced_at[record.partition] = now
            case ReleaseGroup():
                self._pauses[record.pause_id] = now, record.for_seconds or float("inf")
            case ResumingGroup():
                self._resumed(record, now, stepped_at)

    def _claim(self, partition: Partition, one: Claim, other: Claim, record: Record, new: GroupState) -> None:
        if other.token < one.token or (other.owner != one.owner and other.token == one.token):
            self.fail(f"{partition}: token {one.token} of {one.owner}, then {other.token} of {other.owner}")
        sought = isinstance(record, Seeking | FreeingPartition)
        if one.position is not None and not sought and (other.position is None or other.position < one.position):
            self.fail(f"{partition}: position {one.position} fell to {other.position}")
        if other.held and (other.owner is None or not new.present(other.owner)):
            self.fail(f"{partition} is held by {other.owner}, which is not a member")
        if isinstance(record, Seeking) and one.held and one.owner != record.who:
            self.fail(f"{partition} was moved by {record.who} under its owner {one.owner}")
        self.takeovers += one.held and not other.held and isinstance(record, ForgettingMember)

    def _joined(self, record: JoiningGroup, new: GroupState) -> None:
        ours = self._intervals[record.who] = record.heartbeat_seconds
        for member in new.members.values():
            if member.present and self._intervals[member.who] != ours:
                self.fail(
                    f"{record.who} joined with {ours} s alongside {member.who} with {self._intervals[member.who]} s"
                )

    def _forgotten(self, record: ForgettingMember, old: GroupState, now: float) -> None:
        member = old.members[record.client_id]
        if member.present and self.quiet is not None and member.who in self.quiet:
            self.fail(f"{member.who} is alive, and was declared gone at {now} by {record.who}")

    def _resumed(self, record: ResumingGroup, now: float, stepped_at: float) -> None:
        """A timed pause does not end early, whichever broker leads the log; only a clock that is set is trusted."""
        began_at, seconds = self._pauses.pop(record.pause_id, (now, 0.0))
        if record.who != ADMIN and now < began_at + seconds and stepped_at < began_at:
            self.fail(f"a pause of {seconds:.0f} s was ended by {record.who} after {now - began_at:.0f} s")

    # at every moment

    def agreement(self, view: GroupView, entry: Entry) -> None:
        if view.state != entry.behind:
            self.fail(f"a reader disagrees behind {entry.behind.next_offset - 1}")

    def gates(self, living: Sequence[Process], now: float) -> None:
        """Two processes never both believe that they may begin: not even while one of them sleeps.

        An administrator who frees a partition by force does not ask its owner; nor does who deletes the log.
        """
        open_to: dict[Partition, Process] = {}
        for process in living:
            for partition in process.held(now):
                forced_at = max(self._lost_at, self._forced_at.get(partition, float("-inf")))
                if open_to.setdefault(partition, process) is not process and now - forced_at >= 2 * INTERVAL:
                    names = process.client_id, open_to[partition].client_id
                    self.fail(f"{names} may both begin on {partition} at {now}")

    # after the calm

    def shares(self, living: Sequence[Process], now: float) -> None:
        """Each requested partition has one owner, and shares are equal among members with equal requests."""
        held = {process: process.held(now) for process in living}
        owners = Counter(partition for item in held.values() for partition in item)
        for process in living:
            unowned = [partition for partition in process.requested if partition not in owners]
            if unowned:
                names = {other.client_id: sorted(map(str, held[other])) for other in living}
                self.fail(
                    f"no process holds {sorted(map(str, unowned))} at {now}, though {process.client_id} could: {names}"
                )
            foreign = [str(partition) for partition in held[process] if partition not in process.requested]
            if foreign:
                self.fail(f"{process.client_id} holds {foreign}, which it does not want")
            alike = [len(held[other]) for other in living if set(other.requested) == set(process.requested)]
            if self._fair and max(alike) - len(held[process]) > 1:
                self.fail(f"unfair after the calm: {process.client_id} holds {len(held[process])}, others {alike}")
        twice = [str(key) for key, count in owners.items() if count > 1]
        if twice:
            self.fail(f"{twice} are held twice at {now}")
