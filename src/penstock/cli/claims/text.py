"""Claims as text and as JSON: listings, and the records of their history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.claims.admin.commands import ClaimsListing, ListedClaim
from penstock.claims.admin.history import History, JudgedRecord
from penstock.claims.protocol.group_view import Freshness
from penstock.cli.tables import cell, table
from penstock.reporting.verdicts import duration

_ENVELOPE = ("kind", "who", "seq")
"""Fields of every record, which are shown apart."""
_STYLES = {None: "dim", Freshness.FRESH: "", Freshness.UNKNOWN: "yellow", Freshness.STALE: "red"}


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
            {"id": key, **msgspec.to_builtins(pause), "until_at": instant(pause.until_at)}
            for key, pause in listing.pauses.items()
        ],
        "members": [
            {
                "client_id": member.client_id,
                "silent_seconds": round(member.silent_seconds, 3),
                "claims": member.claims,
                "lag": member.lag,
                "state": _state(member.freshness),
            }
            for member in listing.members
        ],
        "claims": [claim_json(claim) for claim in listing.claims],
    }


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
        "freshness": listed.freshness and listed.freshness.value,
        "given_up": claim.given_up,
    }


def record_json(judged: JudgedRecord) -> dict[str, Any]:
    """The record as it is in the log, with its place and its verdict."""
    line: dict[str, Any] = {"offset": judged.offset, "at": instant(judged.at), "verdict": judged.verdict.value}
    if judged.reason:
        line["reason"] = judged.reason
    if judged.record is not None:
        content = msgspec.to_builtins(judged.record)
        line |= {"who": judged.record.who.client_id, "kind": content["kind"]}
        line["record"] = {name: part for name, part in content.items() if name not in _ENVELOPE}
    return line


def _state(freshness: Freshness | None) -> str:
    if freshness is None:
        return "left"
    return "alive" if freshness is Freshness.FRESH else freshness.value


# text


def print_listing(listing: ClaimsListing, console: Console) -> None:
    """Pauses first, then members, then claims."""
    console.print(Text.assemble((listing.group, "bold"), f"  {listing.topic}  {instant(listing.at)}"), soft_wrap=True)
    for key, pause in listing.pauses.items():
        until = "" if pause.until_at is None else f" until {instant(pause.until_at)}"
        reason = f": {pause.reason}" if pause.reason else ""
        console.print(Text(f"! paused{until} by {pause.by} ({key}){reason}", style="yellow"), soft_wrap=True)
    console.print(_members(listing))
    console.print()
    console.print(_claims(listing))
    for listed in listing.claims:
        if listed.claim.given_up:
            spans = ", ".join(f"[{start}, {end})" for start, end in listed.claim.given_up)
            console.print(Text(f"{listed.partition} gave up {spans}"), soft_wrap=True)


def _members(listing: ClaimsListing) -> Table:
    rows = [
        (
            member.client_id,
            _styled(_state(member.freshness), member.freshness),
            duration(member.silent_seconds),
            str(member.claims),
            str(member.lag),
        )
        for member in listing.members
    ]
    return table(("member", "state", "silent", "claims", "lag"), rows, left=(0, 1))


def _claims(listing: ClaimsListing) -> Table:
    rows = [
        (
            str(claim.partition),
            (claim.owner or "-") if claim.claim.held else "-",
            _styled("free" if claim.freshness is None else claim.freshness.value, claim.freshness),
            str(claim.claim.token),
            cell(claim.claim.position),
            str(claim.claim.lag),
            "-" if claim.age_seconds is None else duration(claim.age_seconds),
        )
        for claim in listing.claims
    ]
    return table(("partition", "owner", "state", "token", "position", "lag", "age"), rows, left=(0, 1, 2))


def _styled(state: str, freshness: Freshness | None) -> Text:
    return Text(state, style=_STYLES[freshness])


def holder_text(claim: ListedClaim) -> str:
    """The process that has or had a claim, and how long it has been silent."""
    state = "" if claim.freshness is None else f" ({claim.freshness.value})"
    age = "" if claim.age_seconds is None else f", last record {duration(claim.age_seconds)} ago"
    return f"{claim.owner or 'no member'}{state}{age}"


def print_history(history: History, topic: str, console: Console) -> None:
    """One line per record, oldest first."""
    if history.start:
        console.print(Text(f"! {topic} is read from offset {history.start} on", style="yellow"), soft_wrap=True)
    for judged in history.records:
        console.print(Text(record_text(judged)), soft_wrap=True)


def record_text(judged: JudgedRecord) -> str:
    """One record and its verdict in a line."""
    parts = [str(instant(judged.at)), str(judged.offset)]
    if judged.record is not None:
        content = msgspec.to_builtins(judged.record)
        shown = [f"{name} {_plain(content[name])}" for name in content if name not in _ENVELOPE and content[name]]
        parts += [judged.record.who.client_id, content["kind"], ", ".join(shown)]
    verdict = judged.verdict.value + (f": {judged.reason}" if judged.reason else "")
    return "  ".join([*filter(None, parts), verdict])


def _plain(content: object) -> str:
    """A field of a record without the punctuation of JSON; partitions as `list` shows them."""
    match content:
        case {"topic": topic, "number": number}:
            return f"{topic}/{number}"
        case dict():
            return " ".join(f"{name} {_plain(part)}" for name, part in content.items() if part is not None)
        case list() | tuple():
            return ", ".join(map(_plain, content))
        case _:
            return str(content)
