"""Claims as text and as JSON: listings, and the lines of their history."""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any, assert_never

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.claims.admin.history import Change, History, Line
from penstock.claims.admin.listing import ClaimsListing, ListedClaim, ListedMember
from penstock.claims.protocol.group_view import Freshness
from penstock.claims.protocol.state import Ranges, Span
from penstock.cli.tables import cell, duration, table

LEFT = "left"
ALIVE = "alive"
_INSTANTS = {"at", "until_at"}
_STYLES = {Freshness.FRESH: "", Freshness.UNKNOWN: "yellow", Freshness.STALE: "red"}


def instant(seconds: float | None) -> str | None:
    """Seconds since 1970 as text."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# JSON


def listing_json(listing: ClaimsListing) -> dict[str, Any]:
    return {
        "group": listing.group,
        "topic": listing.topic,
        "at": instant(listing.at),
        "paused": bool(listing.pauses),
        "pauses": [
            {"id": key, **msgspec.to_builtins(each), "until_at": instant(each.until_at)}
            for key, each in listing.pauses.items()
        ],
        "members": [_member_json(each) for each in listing.members],
        "claims": [claim_json(each) for each in listing.claims],
    }


def _member_json(member: ListedMember) -> dict[str, Any]:
    told = {**asdict(member), "state": _state(member.freshness), "silent_seconds": round(member.silent_seconds, 3)}
    del told["freshness"]
    return told


def claim_json(listed: ListedClaim) -> dict[str, Any]:
    place, claim, age = listed.partition, listed.claim, listed.age_seconds
    return {
        "topic": place.topic,
        "topic_id": place.topic_id,
        "partition": place.number,
        "owner": listed.owner,
        "held": claim.held,
        "token": claim.token,
        "position": claim.position,
        "claimed_end": claim.claimed,
        "lag": claim.lag,
        "age_seconds": None if age is None else round(age, 3),
        "freshness": _word(listed.freshness),
        "ranges": None if claim.ranges is None else _ranges_json(claim.ranges, listed),
        "given_up": claim.given_up,
    }


def _ranges_json(ranges: Ranges, listed: ListedClaim) -> dict[str, Any]:
    leases = [
        {
            "start": each.start,
            "end": each.end,
            "owner": None if each.owner is None else each.owner.client_id,
            "attempts": each.attempts,
            "done": each.done,
            "freshness": None if each.done else _word(listed.freshness_of(each.owner)),
        }
        for each in ranges.leases
    ]
    return {"next": ranges.next, "at_most_once": ranges.at_most_once, "leases": leases}


def _word(freshness: Freshness | None) -> str | None:
    return None if freshness is None else freshness.value


def line_json(line: Line) -> dict[str, Any]:
    """The fields of a line, without those that do not apply."""
    told: dict[str, Any] = {}
    for each in fields(line):
        content = getattr(line, each.name)
        if content in (None, "", ()):
            continue
        if each.name == "partition":
            told |= {"topic": content.topic, "topic_id": content.topic_id, "partition": content.number}
        else:
            told[each.name] = instant(content) if each.name in _INSTANTS else content
    return told


def _state(freshness: Freshness | None) -> str:
    if freshness is None:
        return LEFT
    return ALIVE if freshness is Freshness.FRESH else freshness.value


# words


def print_listing(listing: ClaimsListing, console: Console) -> None:
    """Pauses first, then members, then claims."""
    console.print(Text.assemble((listing.group, "bold"), f"  {listing.topic}  {instant(listing.at)}"), soft_wrap=True)
    for key, each in listing.pauses.items():
        until = "" if each.until_at is None else f" until {instant(each.until_at)}"
        reason = f": {each.reason}" if each.reason else ""
        console.print(Text(f"! paused{until} by {each.by} ({key}){reason}", style="yellow"), soft_wrap=True)
    console.print(_members(listing))
    console.print()
    console.print(_claims(listing))
    for claim in listing.claims:
        for text in _shared_text(claim):
            console.print(Text(text), soft_wrap=True)


def _members(listing: ClaimsListing) -> Table:
    rows = [
        (
            each.client_id,
            Text(_state(each.freshness), style="dim" if each.freshness is None else _STYLES[each.freshness]),
            duration(each.silent_seconds),
            str(each.claims),
            cell(each.claims_max),
            str(each.lag),
        )
        for each in listing.members
    ]
    return table(("member", "state", "silent", "claims", "at most", "lag"), rows, left=(0, 1))


def _claims(listing: ClaimsListing) -> Table:
    rows = [
        (
            str(each.partition),
            (each.owner or "-") if each.claim.held else "-",
            Text("free", style="dim") if each.freshness is None else _fresh(each.freshness),
            str(each.claim.token),
            cell(each.claim.position),
            str(each.claim.lag),
            "-" if each.age_seconds is None else duration(each.age_seconds),
        )
        for each in listing.claims
    ]
    return table(("partition", "owner", "state", "token", "position", "lag", "age"), rows, left=(0, 1, 2))


def _fresh(freshness: Freshness) -> Text:
    return Text(freshness.value, style=_STYLES[freshness])


def _shared_text(listed: ListedClaim) -> list[str]:
    """What does not fit into a row: ranges, and offsets that were given up."""
    lines, claim = [], listed.claim
    if claim.ranges is not None:
        once = ", at most once" if claim.ranges.at_most_once else ""
        lines.append(f"{listed.partition} is shared by ranges, the next begins at {claim.ranges.next}{once}")
        for each in claim.ranges.leases:
            state = "done" if each.done else _word(listed.freshness_of(each.owner)) or "returned"
            owner = "-" if each.owner is None else each.owner.client_id
            lines.append(f"  {_span((each.start, each.end))} {owner}, attempt {each.attempts}, {state}")
    if claim.given_up:
        lines.append(f"{listed.partition} gave up {_spans(claim.given_up)}")
    return lines


def claim_text(listed: ListedClaim) -> str:
    """One claim in a sentence."""
    claim = listed.claim
    if not claim.held:
        return f"{listed.partition}, free, last of {listed.owner or 'nobody'}, token {claim.token}"
    position = "none" if claim.position is None else claim.position
    return f"{holder_text(listed)}, token {claim.token}, position {position}"


def holder_text(claim: ListedClaim) -> str:
    """Who holds a claim, and how long it has been silent about it."""
    state = "" if claim.freshness is None else f" ({claim.freshness.value})"
    age = "" if claim.age_seconds is None else f", last heard from {duration(claim.age_seconds)} ago"
    return f"{claim.partition} by {claim.owner}{state}{age}"


def print_history(history: History, topic: str, console: Console) -> None:
    """One line per change, oldest first."""
    if history.start:
        text = f"! {topic} is read from offset {history.start} on: what came before is inferred"
        console.print(Text(text, style="yellow"), soft_wrap=True)
    for line in history.lines:
        console.print(Text(f"{instant(line.at)}  {line_text(line)}"), soft_wrap=True)


def line_text(line: Line) -> str:
    """One change in a sentence."""
    return f"{_subject(line)}: {_what(line)}"


def _subject(line: Line) -> str:
    if line.partition is not None:
        return str(line.partition)
    return f"offset {line.offset}" if line.change is Change.FOREIGN else "group"


def _what(line: Line) -> str:
    match line.change:
        case Change.JOINED:
            return f"{line.who} joined{_because(line.reason, ' ')}"
        case Change.LEFT:
            return f"{line.who} left"
        case Change.SILENT:
            return f"{line.before} was silent{_silent(line)}, and all it held is free (sent by {line.who})"
        case Change.FORGOTTEN:
            return f"{line.before} was absent for a long time and is forgotten (sent by {line.who})"
        case Change.BALANCED:
            return f"a new target{_because(line.reason)} (sent by {line.who})"
        case Change.HELD_BEFORE:
            return f"{line.who} held it already with token {line.token}{_at(line.position)}"
        case Change.CLAIMED:
            after = f", after {line.before}" if line.before else ""
            return f"{line.who} claimed it with token {line.token}{_at(line.position)}{after}{_given_up(line)}"
        case Change.RELEASED:
            return f"{_released(line)}{_given_up(line)}"
        case Change.REFUSED:
            return f"{line.record} of {line.who} refused{_of_range(line)}{_because(line.reason)}"
        case Change.SOUGHT:
            moved = f"{line.who} set the position from {line.start} to {line.position}"
            return f"{moved}{_because(line.reason)}{_given_up(line)}"
        case Change.PAUSED:
            until = "" if line.until_at is None else f" until {instant(line.until_at)}"
            return f"{line.who} paused the group{until} ({line.pause_id}){_because(line.reason)}"
        case Change.RESUMED:
            return f"{line.who} ended the pause {line.pause_id}"
        case Change.SHARED:
            return f"{line.who} shares it from {line.start} on{_because(line.reason, ', ')}"
        case Change.UNSHARED:
            return f"{line.who} works alone again{_at(line.position)}"
        case Change.RANGE_CLAIMED:
            return f"{line.who} works on{_of_range(line)}, attempt {line.attempts}"
        case Change.RANGE_FINISHED:
            return f"{line.who} finished{_of_range(line)}{_given_up(line)}"
        case Change.RANGE_RETURNED:
            return f"{line.before} gave{_of_range(line)} back{_because(line.reason)}{_silent(line)}"
        case Change.RANGE_GIVEN_UP:
            return f"{line.who} gave{_of_range(line)} up for good{_given_up(line)}"
        case Change.FOREIGN:
            return f"not a record of Penstock: {line.reason}"
        case _:
            assert_never(line.change)


def _released(line: Line) -> str:
    """Who releases its own claim, or whose claim another record ends."""
    why = f"{_at(line.position)}{_because(line.reason)}{_silent(line)}"
    if line.before in ("", line.who):
        return f"{line.who} released it{why}"
    return f"{line.before} lost it{why} (sent by {line.who})"


def _at(position: int | None) -> str:
    return "" if position is None else f" at {position}"


def _because(reason: str, before: str = ": ") -> str:
    return f"{before}{reason}" if reason else ""


def _silent(line: Line) -> str:
    return "" if line.silent_seconds is None else f" for {line.silent_seconds:.1f} s"


def _given_up(line: Line) -> str:
    return f"; given up: {_spans(line.given_up)}" if line.given_up else ""


def _of_range(line: Line) -> str:
    if line.start is None:
        return ""
    return f" {_span((line.start, line.end))}" if line.end is not None else f" the range from {line.start}"


def _spans(spans: tuple[Span, ...]) -> str:
    return ", ".join(_span(each) for each in spans)


def _span(span: Span) -> str:
    return f"[{span[0]}, {span[1]})"
