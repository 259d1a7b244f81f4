"""Judges a running job by its own rounds: verdicts of its partitions, and limits of every kind of table."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import field

from penstock import events
from penstock.events import Event, Listener, PartitionProgress, RulesMeasured
from penstock.job.spec import JobSpec
from penstock.reporting.verdicts import (
    Judgement,
    Observation,
    PartitionFacts,
    Thresholds,
    Verdict,
    broken_limits,
    judge,
    worst,
)

OBSERVATIONS_PER_WINDOW = 30
"""So many are kept of each partition."""
JUDGE_SECONDS = 5.0
"""How often it is judged, or with every observation if these come sooner."""
FAILURES_MIN = 2
"""A round that fails once may be a server that restarts."""


class Judged(RulesMeasured, name=RulesMeasured.name):
    """The judgement of a job and of its partitions."""

    judgement: Judgement = field(default_factory=Judgement)
    partitions: Mapping[str, Judgement] = field(default_factory=dict)


class VerdictChanged(Event):
    verdict: str
    reason: str


class Judging:
    """Passes events on, and judges the job between them."""

    def __init__(self, job: JobSpec, inner: Listener, now: Callable[[], float] = time.time) -> None:
        self._inner = inner
        self._now = now
        self._thresholds = Thresholds.of(job)
        self._rules = ["retention"]
        self._rules += ["lag"] if job.alerts.lag_records_max is not None else []
        self._rules += ["age"] if job.alerts.age_seconds_max is not None else []
        self._step_seconds = job.alerts.window_seconds / OBSERVATIONS_PER_WINDOW
        self._windows: dict[tuple[str, str], deque[Observation]] = {}
        """By partition and topic id: positions of another incarnation do not count."""
        # A process that has just started is given time for its first commit.
        self._committed_at = now()
        self._judged_at = -math.inf
        self._failures = 0
        self._verdict = Verdict.OK

    def event(self, event: Event) -> None:
        self._inner.event(event)
        match event:
            case events.BatchCommitted():
                self._committed_at = self._now()
            case events.ProgressMeasured(partitions):
                if self._now() >= self._judged_at + min(self._step_seconds, JUDGE_SECONDS):
                    self._judge(partitions)
            case events.RoundDone():
                if self._failures >= FAILURES_MIN:
                    self._judged_at = -math.inf
                self._failures = 0
            case events.Retrying(reason):
                self._failures += 1
                if self._failures >= FAILURES_MIN:
                    self._report(Judgement(Verdict.ERR, reason))
            case events.JobFailed(_, reason) | events.JobCrashed(_, reason):
                self._report(Judgement(Verdict.ERR, reason))

    def _judge(self, partitions: Mapping[str, PartitionProgress]) -> None:
        now = self._judged_at = self._now()
        windows = {(name, progress.topic_id): deque[Observation]() for name, progress in partitions.items()}
        self._windows = {key: self._windows.get(key, empty) for key, empty in windows.items()}
        judgements: dict[str, Judgement] = {}
        alerts: dict[str, list[str]] = {rule: [] for rule in self._rules}
        for name, progress in partitions.items():
            window = self._windows[name, progress.topic_id]
            fault = (
                ""
                if progress.position >= progress.first
                else f"the log no longer has offsets [{progress.position}, {progress.first})"
            )
            facts = PartitionFacts(
                progress.position, progress.first, progress.end, progress.age_seconds, progress.retention_seconds, fault
            )
            judgements[name] = judge(facts, tuple(window), self._thresholds, now, self._committed_at)
            for rule, reason in broken_limits(facts, self._thresholds.limits).items():
                alerts[rule].append(f"{name}: {reason}")
            if not window or now >= window[-1].at + self._step_seconds:
                window.append(Observation(now, progress.position, progress.end))
            while window[0].at < now - self._thresholds.memory_seconds:
                window.popleft()
        self._report(worst(judgements), judgements, alerts)

    def _report(
        self,
        judgement: Judgement,
        partitions: Mapping[str, Judgement] | None = None,
        alerts: Mapping[str, list[str]] | None = None,
    ) -> None:
        self._inner.event(Judged(alerts or {}, judgement, partitions or {}))
        if judgement.verdict is not self._verdict:
            self._verdict = judgement.verdict
            self._inner.event(VerdictChanged(judgement.verdict, judgement.reason))
