"""Snapshots: the fold of one coordination partition, written beside its log so that start-up reads little (RULES M7).

As the fold is pure, any member may write one, and reading the log from there gives the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.claims.protocol.codec import ForeignError, MalformedError, UnknownVersionError, dump_envelope, envelope
from penstock.claims.protocol.fold import FOLD_VERSION
from penstock.claims.protocol.records import Presence, Who
from penstock.claims.protocol.state import Claim, Group, Lease, LogState, MemberState, Pause, Ranges
from penstock.logs.log import Partition

SNAPSHOT_EVERY_RECORDS = 500
SNAPSHOT_EVERY_SECONDS = 600.0
"""After so many records, or so long after the first of them, one of the members writes a snapshot."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state, the id of the topic that it belongs to, and the broker's append time of its last record."""

    topic_id: str
    place: int
    appended_at: float
    state: LogState


def encode_snapshot(snapshot: Snapshot) -> bytes:
    return dump_envelope(
        "Snapshot",
        {
            "fold": FOLD_VERSION,
            "topic_id": snapshot.topic_id,
            "place": snapshot.place,
            "appended_at": snapshot.appended_at,
            "next_offset": snapshot.state.next_offset,
            "groups": {name: _plain_group(group) for name, group in snapshot.state.groups.items()},
        },
    )


def decode_snapshot(content: bytes | None) -> Snapshot:
    """The snapshot in these bytes; ValueError if they hold none that this version can use."""
    body = envelope(content)
    if body.get("kind") != "Snapshot" or body.get("fold") != FOLD_VERSION:
        raise MalformedError("not a snapshot of this fold")
    try:
        groups = {str(name): _group(each) for name, each in body["groups"].items()}
        state = LogState(int(body["next_offset"]), groups)
        return Snapshot(str(body["topic_id"]), int(body["place"]), float(body["appended_at"]), state)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise MalformedError(f"a damaged snapshot: {error!r}") from None


def newest(contents: Iterable[bytes | None], topic_id: str, place: int) -> Snapshot | None:
    """The snapshot with the highest event position for this topic id; unreadable ones are skipped."""
    found: list[Snapshot] = []
    for content in contents:
        try:
            snapshot = decode_snapshot(content)
        except (ForeignError, MalformedError, UnknownVersionError):
            continue
        if snapshot.topic_id == topic_id and snapshot.place == place:
            found.append(snapshot)
    return max(found, key=lambda each: each.state.next_offset, default=None)


def _plain_group(group: Group) -> dict[str, Any]:
    return {
        "claims": [_plain_claim(partition, claim) for partition, claim in group.claims.items()],
        "members": [
            [each.who.client_id, each.who.nonce, each.last, each.present, each.presence.claims_max, each.presence.lag]
            for each in group.members.values()
        ],
        "pauses": {key: [each.by, each.until_at, each.reason] for key, each in group.pauses.items()},
    }


def _plain_claim(partition: Partition, claim: Claim) -> dict[str, Any]:
    return {
        "partition": [partition.topic, partition.topic_id, partition.number],
        "token": claim.token,
        "owner": _plain_who(claim.owner),
        "held": claim.held,
        "last": claim.last,
        "position": claim.position,
        "claimed": claim.claimed,
        "given_up": [list(each) for each in claim.given_up],
        "lag": claim.lag,
        "ranges": None if claim.ranges is None else _plain_ranges(claim.ranges),
    }


def _plain_ranges(ranges: Ranges) -> dict[str, Any]:
    return {
        "next": ranges.next,
        "at_most_once": ranges.at_most_once,
        "leases": [
            [each.start, each.end, each.lease, each.last, _plain_who(each.owner), each.attempts, each.done]
            for each in ranges.leases
        ],
    }


def _plain_who(who: Who | None) -> list[str] | None:
    return None if who is None else [who.client_id, who.nonce]


def _group(body: Mapping[str, Any]) -> Group:
    return Group(
        claims=dict(_claim(each) for each in body["claims"]),
        members={
            client_id: MemberState(Who(client_id, nonce), last, present, Presence(claims_max, lag))
            for client_id, nonce, last, present, claims_max, lag in body["members"]
        },
        pauses={key: Pause(by, until_at, reason) for key, (by, until_at, reason) in body["pauses"].items()},
    )


def _claim(body: Mapping[str, Any]) -> tuple[Partition, Claim]:
    claim = Claim(
        token=body["token"],
        owner=_who(body["owner"]),
        held=body["held"],
        last=body["last"],
        position=body["position"],
        claimed=body["claimed"],
        ranges=None if body["ranges"] is None else _ranges(body["ranges"]),
        given_up=tuple((start, end) for start, end in body["given_up"]),
        lag=body["lag"],
    )
    return Partition(*body["partition"]), claim


def _ranges(body: Mapping[str, Any]) -> Ranges:
    leases = tuple(
        Lease(start, end, lease, last, _who(owner), attempts, done)
        for start, end, lease, last, owner, attempts, done in body["leases"]
    )
    return Ranges(body["next"], leases, body["at_most_once"])


def _who(body: list[str] | None) -> Who | None:
    return None if body is None else Who(*body)
