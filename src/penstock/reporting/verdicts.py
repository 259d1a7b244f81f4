"""Judges from a job's own positions whether its partitions are read, with the verdicts of Burrow. Pure.

What is observed are positions over time: the commits in the history of a table, the rounds of a running job, or both.
Records wait since the oldest unread one was made, or since an earlier observation showed that they had arrived. So a
topic that is quiet for hours is no reason for a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from penstock.job.spec import AlertLimits, JobSpec

WARN_SHARE = 0.5
"""At this share of a limit a partition gets WARN, at the limit ERR."""
WINDOW_SHARE_MIN = 0.8
"""How much of the window has to be observed before lag is called growing."""
TREND_PARTS = 3


class Verdict(StrEnum):
    """How a partition, or the worst partition of a job, is doing; the later, the worse."""

    OK = "OK"
    WARN = "WARN"
    """Half of a limit is reached, or the lag grows although the job commits."""
    STALL = "STALL"
    """The job commits, and this partition does not move although records wait."""
    STOP = "STOP"
    """Records wait, and the job commits nothing."""
    REWIND = "REWIND"
    """The position went back."""
    ERR = "ERR"
    """A limit is reached, or position and log do not fit, or the log does not answer."""

    @property
    def severity(self) -> int:
        return list(Verdict).index(self)


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict = Verdict.OK
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """Where a partition was at a time; `end` is None where only the position was recorded."""

    at: float
    position: int
    end: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Where a partition is now; what concerns the log is None where it does not answer."""

    position: int | None
    first: int | None = None
    end: int | None = None
    age_seconds: float | None = None
    """Of the oldest unread record; None if there is none, or if it is not known."""
    retention_seconds: float | None = None
    """None: unlimited, or not known."""
    fault: str = ""
    """Why the position does not fit the log, or why the log is not known."""
    rewound_from: int | None = None
    """A greater position that the job has shown to others."""

    @property
    def lag_records(self) -> int | None:
        """Unread offsets that the log still has: what retention deleted is a gap, not lag."""
        if self.position is None or self.end is None:
            return None
        return max(0, self.end - max(self.position, self.first or 0))

    @property
    def retention_share(self) -> float | None:
        """How much of the topic's retention the oldest unread record has used up."""
        if self.age_seconds is None or not self.retention_seconds:
            return None
        return self.age_seconds / self.retention_seconds


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits of a job, with how long its records may wait before a batch is due."""

    limits: AlertLimits
    latency_seconds: float

    @staticmethod
    def of(job: JobSpec) -> Thresholds:
        return Thresholds(job.alerts, job.flush.allowed_latency_seconds)

    @property
    def patience_seconds(self) -> float:
        """How long records may wait without any move."""
        return self.limits.stop_after_seconds + self.latency_seconds

    @property
    def memory_seconds(self) -> float:
        """How far back observations are needed."""
        return max(self.limits.window_seconds, self.patience_seconds)


def judge(
    facts: PartitionFacts, window: Sequence[Observation], thresholds: Thresholds, now: float, committed_at: float | None
) -> Judgement:
    """Judge a partition by where it is now and by earlier observations of the same incarnation, oldest first.

    `committed_at` is when the job last committed anything, whichever partition it was for. The cause comes first: a
    job that has stopped exceeds its limits too.
    """
    if facts.fault:
        return Judgement(Verdict.ERR, facts.fault)
    if facts.position is None:
        return Judgement(Verdict.WARN, "not started yet")
    rules = (
        _rewound(facts, window),
        _motionless(facts, window, thresholds, now, committed_at),
        _limited(facts, thresholds.limits),
        _growing(facts, window, thresholds, now),
    )
    return next((judgement for judgement in rules if judgement is not None), Judgement())


def worst(partitions: Mapping[str, Judgement], *others: Judgement) -> Judgement:
    """The judgement of a job: of its worst partition, or what concerns the job as a whole."""
    judgements = [
        *((f"{name}: ", judgement) for name, judgement in partitions.items()),
        *(("", other) for other in others),
    ]
    if not judgements:
        return Judgement()
    place, judgement = max(judgements, key=lambda pair: (pair[1].verdict.severity, not pair[0]))
    alike = sum(other.verdict is judgement.verdict for other in partitions.values())
    if judgement.verdict is Verdict.OK:
        return judgement
    more = f" ({alike} partitions)" if place and alike > 1 else ""
    return Judgement(judgement.verdict, f"{place}{judgement.reason}{more}")


def broken_limits(facts: PartitionFacts, limits: AlertLimits) -> dict[str, str]:
    """The limits of every kind of table that a partition reaches, by rule, with the reason."""
    return {rule: reason for rule, verdict, reason in _compared(facts, limits) if verdict is Verdict.ERR}


def duration(seconds: float) -> str:
    """Seconds in the largest unit that leaves at least two of it."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def _rewound(facts: PartitionFacts, window: Sequence[Observation]) -> Judgement | None:
    assert facts.position is not None
    positions = [*(observation.position for observation in window), facts.position]
    falls = [(before, after) for before, after in pairwise(positions) if after < before]
    if facts.rewound_from is not None:
        falls.append((facts.rewound_from, facts.position))
    if not falls:
        return None
    before, after = falls[-1]
    return Judgement(Verdict.REWIND, f"the position went back from {before} to {after}")


def _motionless(
    facts: PartitionFacts, window: Sequence[Observation], thresholds: Thresholds, now: float, committed_at: float | None
) -> Judgement | None:
    """STOP or STALL: records wait for longer than a batch may take to come."""
    waited, patience = _waited_seconds(facts, window, now), thresholds.patience_seconds
    if waited <= patience:
        return None
    wait = f"records wait for {duration(waited)}"
    if committed_at is None:
        return Judgement(Verdict.STOP, f"{wait}, and the job has not committed yet")
    if now - committed_at > patience:
        return Judgement(Verdict.STOP, f"{wait}, and the last commit was {duration(now - committed_at)} ago")
    moved_at = next((observation.at for observation in _unmoved(facts, window)), now)
    if now - moved_at > patience:
        stays = f"the position stays at {facts.position} for {duration(now - moved_at)}"
        return Judgement(Verdict.STALL, f"{wait}, and {stays} although the job commits")
    return None


def _unmoved(facts: PartitionFacts, window: Sequence[Observation]) -> Iterator[Observation]:
    """The observations since the partition last moved, oldest first."""
    moved = [number for number, observation in enumerate(window, 1) if observation.position != facts.position]
    yield from window[moved[-1] if moved else 0 :]


def _waited_seconds(facts: PartitionFacts, window: Sequence[Observation], now: float) -> float:
    """How long unread records have waited at least."""
    if not facts.lag_records:
        return 0.0
    arrived = (
        observation.at
        for observation in window
        if observation.end is not None and observation.end > (facts.position or 0)
    )
    return max(facts.age_seconds or 0.0, now - next(arrived, now))


def _limited(facts: PartitionFacts, limits: AlertLimits) -> Judgement | None:
    """ERR at a limit, WARN at half of it."""
    reached = [Judgement(verdict, reason) for _, verdict, reason in _compared(facts, limits)]
    return max(reached, key=lambda judgement: judgement.verdict.severity, default=None)


def _compared(facts: PartitionFacts, limits: AlertLimits) -> Iterator[tuple[str, Verdict, str]]:
    """The limits that a partition reaches at least by half, by rule."""
    lag, age, share = facts.lag_records, facts.age_seconds, facts.retention_share
    rules = (
        ("lag", lag, limits.lag_records_max, lambda number: f"{number:.0f} records"),
        ("age", age, limits.age_seconds_max, duration),
        ("retention", share, limits.retention_share_max, lambda number: f"{number:.0%} of the topic's retention"),
    )
    wholes = {"lag": "{} up to the end of the log", "age": "the oldest unread record is {} old"}
    for rule, value, limit, shown in rules:
        if value is None or limit is None or value < limit * WARN_SHARE or not lag:
            continue
        verdict = Verdict.ERR if value >= limit else Verdict.WARN
        text = wholes.get(rule, "the oldest unread record has used up {}").format(shown(value))
        yield rule, verdict, f"{text}, the limit is {shown(limit)}"


def _growing(
    facts: PartitionFacts, window: Sequence[Observation], thresholds: Thresholds, now: float
) -> Judgement | None:
    """WARN while the job commits and the lag still grows: even its lowest values, since every commit lowers it."""
    since = now - thresholds.limits.window_seconds
    lags = [
        (observation.at, observation.end - observation.position)
        for observation in window
        if observation.end is not None and observation.at >= since
    ]
    lag, waited = facts.lag_records, _waited_seconds(facts, window, now)
    span = now - lags[0][0] if lags else 0.0
    if not lag or waited <= thresholds.latency_seconds or span < WINDOW_SHARE_MIN * thresholds.limits.window_seconds:
        return None
    lags.append((now, lag))
    parts: list[list[int]] = [[] for _ in range(TREND_PARTS)]
    for at, of_observation in lags:
        parts[min(TREND_PARTS - 1, int((at - lags[0][0]) / span * TREND_PARTS))].append(of_observation)
    lowest = [min(part, default=0) for part in parts]
    if not all(parts) or not all(before < after for before, after in pairwise(lowest)):
        return None
    return Judgement(Verdict.WARN, f"lag grew from {lags[0][1]} to {lag} records in {duration(span)}")
