"""A group under a hostile schedule: real participants, worlds and folds; simulated time, network, processes and tables.

A failing assertion names its seed. To replay it:

    from tests.unit.claims.member.simulation import simulate
    simulate(SEED)

The same seed is the same run, word for word: chance comes from the seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.claims.member.membership import DuplicateClientError, MemberOptions, ReplacedError, Send
from penstock.claims.member.participant import Participant
from penstock.claims.protocol.codec import decode, encode
from penstock.claims.protocol.fold import apply
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import ClaimingPartition, ClaimingRange, Record, ReleaseGroup, ResumingGroup, Who
from penstock.claims.protocol.state import LogState
from penstock.errors import PenstockError
from penstock.logs.log import Partition
from tests.coordination import GROUP, web
from tests.unit.claims.member.model_table import Table, ViolationError

INTERVAL = 10.0
STEP = 2.5
HOSTILE_INTERVALS = 20
CALM_INTERVALS = 8
"""A false refusal by a late word (1), watching a client id (1), leases that run out (2), take-overs and shares (3)."""
QUICK = 1000
"""As many records as anybody reads in one step."""
PLACES = 2
ADMIN = Who("admin", "admin")


@dataclass(slots=True)
class Outcome:
    """What happened in a run, to see that the schedule was a hostile one."""

    table: Table
    records: int = 0
    refused: int = 0
    takeovers: int = 0
    crashes: int = 0
    naps: int = 0
    duplicates_refused: int = 0
    replaced: int = 0
    late: int = 0
    lost: int = 0


@dataclass(slots=True)
class _Entry:
    record: Record
    appended_at: float
    visible_at: float
    behind: LogState
    """What everybody must see who has read up to here."""


@dataclass(slots=True)
class _Job:
    """Rows that are being made: the position was read, the commit comes when they are ready."""

    token: int
    start: int
    end: int
    ready_at: float


@dataclass(slots=True)
class _Process:
    """One life of a member, with its own clocks, its own slowness, and work under way."""

    participant: Participant
    monotonic: Callable[[float], float]
    wall_skew: float
    read_max: int
    ends: list[int]
    """Where the log ended when it came: it acts when it has read so far."""
    read: list[int] = field(default_factory=lambda: [0] * PLACES)
    asleep_until: float = 0.0
    error: PenstockError | None = None
    fenced: dict[Partition, int] = field(default_factory=dict)
    positions: dict[Partition, int] = field(default_factory=dict)
    jobs: dict[Partition, _Job] = field(default_factory=dict)

    @property
    def client_id(self) -> str:
        return self.participant.who.client_id


def simulate(seed: int, *, table_checks: bool = True, deaf: bool = False) -> Outcome:
    """One run; raises `ViolationError` where a promise is broken.

    The switches break something on purpose: a table that takes everything, a reader that misses records.
    """
    run = _Run(seed, table_checks, deaf)
    run.be_hostile()
    run.calm_down()
    return run.outcome


class _Run:
    def __init__(self, seed: int, table_checks: bool, deaf: bool) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.hostile = True
        self.deaf = deaf
        self.partitions = [web(number) for number in range(self.rng.randint(1, 6))]
        self.log: list[list[_Entry]] = [[] for _ in range(PLACES)]
        self.under_way: list[tuple[float, Send]] = []
        self.reported: list[tuple[float, _Process, Record]] = []
        self.processes: list[_Process] = []
        self.lives = 0
        self.outcome = Outcome(Table(seed, table_checks))
        self.table = self.outcome.table
        self.newcomers: list[tuple[float, str]] = [
            (self.rng.uniform(0, 3 * INTERVAL), f"m{number}") for number in range(self.rng.randint(2, 4))
        ]

    # phases

    def be_hostile(self) -> None:
        while self.now < HOSTILE_INTERVALS * INTERVAL:
            self._step()
            self._misfortune()

    def calm_down(self) -> None:
        """Nothing bad happens any more: within a few intervals everything is held, fairly, and moves on."""
        self.hostile = False
        self.newcomers = [(self.now, client_id) for _, client_id in self.newcomers]
        self.under_way = [(self.now, send) for _, send in self.under_way]
        for process in self.processes:
            process.asleep_until = 0.0
            process.read_max = QUICK
        self._broadcast(ResumingGroup(group=GROUP, who=ADMIN, seq=0, pause_id="p"))
        self._run_for(CALM_INTERVALS)
        reached = dict(self.table.written)
        self._run_for(2)
        self._check_liveness(reached)
        self._check_late_reader()

    def _run_for(self, intervals: int) -> None:
        end = self.now + intervals * INTERVAL
        while self.now < end:
            self._step()

    def _living(self) -> list[_Process]:
        return [each for each in self.processes if each.error is None]

    # one moment

    def _step(self) -> None:
        self.now += STEP
        for at, client_id in [each for each in self.newcomers if each[0] <= self.now]:
            self.newcomers.remove((at, client_id))
            self._start(client_id)
        self._deliver()
        for process in self.rng.sample(self.processes, len(self.processes)):
            if process.error is None and process.asleep_until <= self.now:
                self._turn(process)
        self._check_gates()

    def _turn(self, process: _Process) -> None:
        self._read(process)
        participant, now = process.participant, process.monotonic(self.now)
        if all(read >= end for read, end in zip(process.read, process.ends, strict=True)):
            participant.begin(now)
        participant.want(self.partitions, {each: self.table.token(each) for each in self.partitions})
        participant.using(process.jobs)
        try:
            sends = participant.decide(now, self.now + process.wall_skew)
        except PenstockError as error:
            self._end(process, error)
            return
        for send in sends:
            self._produce(process, send)
        self._work(process, now)

    def _end(self, process: _Process, error: PenstockError) -> None:
        """A process stops; whoever watches over it starts it again if its client id is not at work elsewhere."""
        process.error = error
        self.outcome.duplicates_refused += isinstance(error, DuplicateClientError)
        self.outcome.replaced += isinstance(error, ReplacedError)
        if process.client_id not in [each.client_id for each in self._living()]:
            self.newcomers.append((self.now + INTERVAL, process.client_id))

    def _read(self, process: _Process) -> None:
        left = process.read_max
        for place in self.rng.sample(range(PLACES), PLACES):
            entries = self.log[place]
            while left > 0 and process.read[place] < len(entries):
                offset = process.read[place]
                entry = entries[offset]
                if entry.visible_at > self.now:
                    break
                process.read[place] += 1
                left -= 1
                if self.deaf and self.rng.random() < 0.02:
                    continue
                now = process.monotonic(self.now)
                process.participant.read(place, offset, entry.record, now, entry.appended_at)
                self._check_agreement(process.participant.view, place, offset)

    # the network

    def _produce(self, process: _Process, send: Send) -> None:
        """A record on its way: soon there, or late and reported as failed, or lost and reported as failed."""
        luck = self.rng.random() if self.hostile else 1.0
        if luck < 0.03:
            self.outcome.lost += 1
        else:
            late = luck < 0.08
            self.outcome.late += late
            delay = self.rng.uniform(5, 60) if late else self.rng.choice((0.0, 0.0, STEP))
            self.under_way.append((self.now + delay, send))
            if luck > 0.99 and self.hostile:
                self.under_way.append((self.now + self.rng.uniform(0, 30), send))
        if luck < 0.08:
            self.reported.append((self.now + 5, process, send.record))

    def _deliver(self) -> None:
        due = [each for each in self.under_way if each[0] <= self.now]
        self.under_way = [each for each in self.under_way if each[0] > self.now]
        for _, send in due:
            self._append(send.place, send.record)
        for at, process, record in self.reported:
            if at <= self.now:
                process.participant.outbox.failed(record)
        self.reported = [each for each in self.reported if each[0] > self.now]

    def _append(self, place: int, record: Record) -> None:
        content = decode(encode(record, PLACES))[0]
        entries = self.log[place]
        before = entries[-1].behind if entries else LogState()
        after, refusal = apply(before, len(entries), content)
        self.outcome.records += 1
        self.outcome.refused += refusal is not None
        self._check_step(content, before, after, refusal)
        appended_at = 1e6 + self.now + self.rng.uniform(-1, 1)
        entries.append(_Entry(content, appended_at, self.now + self.rng.choice((0.0, 0.0, STEP)), after))

    def _broadcast(self, record: Record) -> None:
        for place in range(PLACES):
            self._append(place, record)

    # processes

    def _start(self, client_id: str) -> None:
        self.lives += 1
        view = GroupView(GROUP, PLACES, INTERVAL)
        participant = Participant(MemberOptions(GROUP, client_id, INTERVAL), f"n{self.lives}", view)
        base, rate = self.rng.uniform(0, 1e6), self.rng.uniform(0.99, 1.01)
        self.processes.append(
            _Process(
                participant=participant,
                monotonic=lambda now: base + rate * now,
                wall_skew=self.rng.choice((0.0, -3600.0, -1.0, 1.0, 3600.0)),
                read_max=self.rng.choice((3, 10, QUICK, QUICK)) if self.hostile else QUICK,
                ends=[len(entries) for entries in self.log],
            )
        )

    def _misfortune(self) -> None:
        """What may befall the processes in one moment."""
        for process in self._living():
            luck = self.rng.random()
            if luck < 0.008:
                process.asleep_until = self.now + self.rng.uniform(0.5, 6) * INTERVAL
                self.outcome.naps += 1
                if self.rng.random() < 0.3:
                    self.newcomers.append((self.now + self.rng.uniform(0, 2) * INTERVAL, process.client_id))
            elif luck < 0.012:
                self.processes.remove(process)
                self.newcomers.append((self.now + self.rng.uniform(0, 4) * INTERVAL, process.client_id))
                self.outcome.crashes += 1
            elif luck < 0.014:
                self._start(process.client_id)
            elif luck < 0.016:
                for send in process.participant.leave(process.monotonic(self.now)):
                    self._produce(process, send)
                self.processes.remove(process)
                self.newcomers.append((self.now + self.rng.uniform(0, 4) * INTERVAL, process.client_id))
        if self.rng.random() < 0.004:
            until = self.now + self.rng.uniform(1, 4) * INTERVAL
            self._broadcast(ReleaseGroup(group=GROUP, who=ADMIN, seq=0, pause_id="p", until_at=until))

    # work on tables

    def _work(self, process: _Process, now: float) -> None:
        """Commit what is ready whatever happened meanwhile: the table must refuse it. Begin only behind the gate."""
        for partition, job in list(process.jobs.items()):
            if job.ready_at > self.now:
                continue
            del process.jobs[partition]
            if self.table.commit(partition, job.token, job.start, job.end):
                process.positions[partition] = job.end
                process.participant.progress(partition, job.end)
            else:
                process.fenced.pop(partition, None)
        for partition, token in process.participant.held(now).items():
            if partition not in process.jobs and self.rng.random() < 0.7:
                self._begin(process, partition, token)

    def _begin(self, process: _Process, partition: Partition, token: int) -> None:
        if process.fenced.get(partition) != token:
            position = self.table.fence(partition, token)
            if position is None:
                return
            process.fenced[partition], process.positions[partition] = token, position
        start = process.positions[partition]
        seconds = self.rng.choice((1.0, 3.0, 8.0, 25.0)) if self.hostile else 2.0
        process.jobs[partition] = _Job(token, start, start + self.rng.randint(1, 9), self.now + seconds)

    # what must hold

    def _check_step(self, record: Record, before: LogState, after: LogState, refusal: str | None) -> None:
        old, new = before.group(GROUP), after.group(GROUP)
        if refusal is None and old.pauses and isinstance(record, ClaimingPartition | ClaimingRange):
            self._fail(f"{record} was accepted in a pause")
        for partition in self.partitions:
            one, other = old.claim(partition), new.claim(partition)
            if one is other:
                continue
            if other.token < one.token or (other.owner != one.owner and other.token == one.token):
                self._fail(f"{partition}: token {one.token} of {one.owner}, then {other.token} of {other.owner}")
            if one.position is not None and (other.position is None or other.position < one.position):
                self._fail(f"{partition}: position {one.position} fell to {other.position}")
            self.outcome.takeovers += one.held and other.owner != one.owner

    def _check_agreement(self, view: GroupView, place: int, offset: int) -> None:
        if view.folds[place] != self.log[place][offset].behind:
            self._fail(f"a reader disagrees behind {place}/{offset}")

    def _check_gates(self) -> None:
        """Two members never both believe that they may begin: not even while one of them sleeps."""
        open_to: dict[Partition, str] = {}
        for process in self._living():
            for partition in process.participant.held(process.monotonic(self.now)):
                if open_to.setdefault(partition, process.client_id) != process.client_id:
                    self._fail(f"{process.client_id} and {open_to[partition]} may both begin on {partition}")

    def _check_liveness(self, reached: dict[Partition, int]) -> None:
        held = [process.participant.held(process.monotonic(self.now)) for process in self._living()]
        owned = sorted(partition for each in held for partition in each)
        if owned != self.partitions:
            self._fail(f"held after the calm: {owned} by {[each.client_id for each in self._living()]}")
        counts = [len(each) for each in held]
        if max(counts) - min(counts) > 1:
            self._fail(f"unfair after the calm: {counts}")
        if idle := [each for each in self.partitions if self.table.written.get(each, 0) <= reached.get(each, 0)]:
            self._fail(f"no work after the calm on {idle}")

    def _check_late_reader(self) -> None:
        """Who comes at the end and reads from the beginning agrees with all who were there."""
        view = GroupView(GROUP, PLACES, INTERVAL)
        for place, entries in enumerate(self.log):
            for offset, entry in enumerate(entries):
                view.read(place, offset, entry.record, 5.0, entry.appended_at)
                self._check_agreement(view, place, offset)

    def _fail(self, what: str) -> None:
        raise ViolationError(f"seed {self.seed}: {what}")
