"""The page of claims: which process holds which partition, how that changed, and what an administrator may do."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.claims.admin import commands as admin
from penstock.claims.admin.commands import ClaimsListing
from penstock.claims.admin.history import JudgedRecord, RecordVerdict, Tenure
from penstock.claims.admin.log_reader import CoordinatedGroup
from penstock.claims.protocol.records import (
    ClaimingPartition,
    ForgettingMember,
    FreeingPartition,
    JoiningGroup,
    LeavingGroup,
    ReleaseGroup,
    ReleasingPartition,
    ResumingGroup,
    partitions_of,
)
from penstock.console.access import form_of, operating, reading
from penstock.console.commands import reachable_spec, spec_of
from penstock.console.rendering import Link, job_of, render, state_of
from penstock.errors import PenstockError, UserError
from penstock.job.faults import InvalidValueError
from penstock.job.spec import ClaimsSpec, JobSpec, kafka_of
from penstock.job.values import parse_duration
from penstock.logs.log import Partition

link = Link("Claims", "claims", of_job=True)

RECORDS_MAX = 50_000
"""Of the coordination topic, the newest, heartbeats among them."""
CACHED_SECONDS = 8.0
EVENTS_SHOWN = 60
ROWS_MAX = 200
PARTITIONS_NAMED = 4
PAUSE_SECONDS_MAX = 10.0
"""How long a pause is followed; the page shows who still holds something."""
WIDTH, ROW, LEFT = 960, 22, 150
COLOURS = 8
DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Bar:
    """A tenure as a bar of the timeline."""

    x: float
    width: float
    colour: int
    title: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """A row of bars for each partition, and times along the axis."""

    rows: tuple[tuple[str, tuple[Bar, ...]], ...]
    ticks: tuple[tuple[float, str], ...]
    members: tuple[tuple[str, int], ...]
    """With the number of their colour."""
    hidden: int = 0
    """Partitions that are not drawn."""

    @property
    def height(self) -> int:
        return ROW * len(self.rows) + ROW


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """A change of a group for people."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Overview:
    listing: ClaimsListing
    timeline: Timeline
    events: tuple[GroupEvent, ...]
    """The newest first."""


class Overviews:
    """Those of the last seconds: a page that reloads reads the topic once."""

    def __init__(self) -> None:
        self._by_group: dict[tuple[str, str, str], tuple[float, Overview]] = {}

    def of(self, group: CoordinatedGroup) -> Overview:
        read_at, cached = self._by_group.get(_key(group), (float("-inf"), None))
        if cached is None or time.monotonic() - read_at > CACHED_SECONDS:
            cached = overview_of(group)
            self._by_group[_key(group)] = (time.monotonic(), cached)
        return cached

    def forget(self, group: CoordinatedGroup) -> None:
        self._by_group.pop(_key(group), None)


def _key(group: CoordinatedGroup) -> tuple[str, str, str]:
    return group.spec.bootstrap, group.topic, group.group


OVERVIEWS = Overviews()


@reading
def claims(request: Request) -> Response:
    overview, fault, shared = None, None, True
    try:
        spec = spec_of(request)
        shared = spec.claims is not None and spec.claims.mode == "group"
        overview = OVERVIEWS.of(group_of(reachable_spec(request))) if shared else None
    except PenstockError as error:
        fault = error
    return render(
        request, "claims.html", job=job_of(request), overview=overview, fault=fault, shared=shared, row=ROW,
        left=LEFT, width=WIDTH,
    )  # fmt: skip


@operating("pause the group")
def pause(request: Request) -> Response:
    form, group = form_of(request), group_of(spec_of(request))
    try:
        for_seconds = parse_duration(form["for"].strip()) if form.get("for", "").strip() else None
    except InvalidValueError as error:
        raise UserError(f"for how long: {error.message}", hint=error.hint) from None
    admin.pause(group, for_seconds, form.get("reason", "").strip(), PAUSE_SECONDS_MAX)
    return _back(request, group)


@operating("resume the group")
def resume(request: Request) -> Response:
    group = group_of(spec_of(request))
    admin.resume(group, form_of(request).get("pause") or None)
    return _back(request, group)


@operating("release a claim")
def release(request: Request) -> Response:
    group = group_of(spec_of(request))
    admin.release(group, form_of(request).get("partition", ""))
    return _back(request, group)


def group_of(job: JobSpec) -> CoordinatedGroup:
    return CoordinatedGroup(kafka_of(job), job.log.group, (job.claims or ClaimsSpec()).topic)


def overview_of(group: CoordinatedGroup) -> Overview:
    listing, history = admin.overview(group, RECORDS_MAX)
    first_at = min([record.at for record in history.records], default=listing.at)
    before = owners_before(history.tenures)
    events = [event for record in reversed(history.records) if (event := event_of(record, before)) is not None]
    return Overview(listing, timeline_of(history.tenures, first_at, listing.at), tuple(events[:EVENTS_SHOWN]))


def owners_before(tenures: Sequence[Tenure]) -> dict[tuple[Partition, float | None], str]:
    """Who held a partition before another member took it, by partition and time."""
    ordered = sorted(tenures, key=lambda tenure: (tenure.partition, tenure.token))
    return {
        (after.partition, after.start_at): before.owner
        for before, after in pairwise(ordered)
        if before.partition == after.partition and before.owner != after.owner
    }


def timeline_of(tenures: Sequence[Tenure], start: float, end: float) -> Timeline:
    """The tenures between two times, a row for each partition; pure."""
    span = max(end - start, 1.0)
    owners = sorted({tenure.owner for tenure in tenures})
    rows: dict[str, list[Bar]] = {}
    for tenure in sorted(tenures, key=lambda tenure: (tenure.partition, tenure.start_at or start)):
        since, until = max(start, tenure.start_at or start), min(end, tenure.end_at or end)
        x, width = LEFT + (WIDTH - LEFT) * (since - start) / span, (WIDTH - LEFT) * max(0.0, until - since) / span
        spoken = f"{_clock(tenure.start_at) or 'before'} to {_clock(tenure.end_at) or 'now'}"
        title = f"{tenure.partition}: {tenure.owner}, token {tenure.token}, {spoken}"
        rows.setdefault(str(tenure.partition), []).append(
            Bar(x, max(2.0, width), owners.index(tenure.owner) % COLOURS, title)
        )
    shape = "%H:%M:%S" if span < DAY_SECONDS else "%m-%d %H:%M"
    times = [(part / 4, datetime.fromtimestamp(start + span * part / 4, UTC)) for part in range(5)]
    marks = [(LEFT + (WIDTH - LEFT) * share, at.strftime(shape)) for share, at in times]
    shown = list(rows.items())[:ROWS_MAX]
    return Timeline(
        tuple((name, tuple(bars)) for name, bars in shown),
        tuple(marks),
        tuple((owner, number % COLOURS) for number, owner in enumerate(owners)),
        len(rows) - len(shown),
    )


def event_of(
    judged: JudgedRecord, before: Mapping[tuple[Partition, float | None], str] = MappingProxyType({})
) -> GroupEvent | None:
    """A record as a sentence; None for those that only members need. What was refused is said so."""
    record = judged.record
    is_race = isinstance(record, ForgettingMember) and judged.verdict is RecordVerdict.REFUSED
    if record is None or is_race:
        return None
    who = record.who.client_id
    match record:
        case JoiningGroup():
            kind, text = "join", f"{who} joined"
        case LeavingGroup():
            kind, text = "leave", f"{who} left"
        case ForgettingMember():
            kind, text = "gone", f"{who} declared {record.client_id} gone"
        case ClaimingPartition():
            claimed = partitions_of(record)
            others = {before[partition, judged.at] for partition in claimed if (partition, judged.at) in before}
            kind, text = "takeover" if others else "claim", f"{who} claimed {_names(claimed)}"
            text += f", held by {_names(sorted(others))} before" if others else ""
        case ReleasingPartition():
            reason = f": {record.reason}" if record.reason else ""
            kind, text = "release", f"{who} released {_names(partitions_of(record))}{reason}"
        case FreeingPartition():
            kind, text = "freed", f"{who} freed {record.partition}" + (f": {record.reason}" if record.reason else "")
        case ReleaseGroup():
            until = "" if record.for_seconds is None else f" for {record.for_seconds:g} s"
            kind, text = "pause", f"{who} paused the group{until}" + (f": {record.reason}" if record.reason else "")
        case ResumingGroup():
            kind, text = "resume", f"{who} ended the pause {record.pause_id}"
        case _:
            return None
    if judged.verdict is not RecordVerdict.APPLIED or judged.reason:
        text += f" ({judged.verdict.value}{f': {judged.reason}' if judged.reason else ''})"
    return GroupEvent(judged.at, kind, text)


def _names(partitions: Iterable[object]) -> str:
    names = [str(partition) for partition in partitions]
    more = f" and {len(names) - PARTITIONS_NAMED} more" if len(names) > PARTITIONS_NAMED else ""
    return ", ".join(names[:PARTITIONS_NAMED]) + more


def _clock(at: float | None) -> str | None:
    return None if at is None else f"{datetime.fromtimestamp(at, UTC):%m-%d %H:%M:%S}"


def _back(request: Request, group: CoordinatedGroup) -> Response:
    OVERVIEWS.forget(group)
    state_of(request).live.publish(job_of(request).name)
    return RedirectResponse(request.url_for("claims", job=job_of(request).name).path, 303)


routes = [
    Route("/jobs/{job}/claims", claims, name="claims"),
    Route("/jobs/{job}/claims/pause", pause, methods=["POST"], name="pause"),
    Route("/jobs/{job}/claims/resume", resume, methods=["POST"], name="resume"),
    Route("/jobs/{job}/claims/release", release, methods=["POST"], name="release"),
]
