"""Snapshots: the fold of a group, written alongside its log so that start-up reads little (RULES M7).

As the fold is pure, any member may write one, and reading the log from there gives the same state. A reader starts from
the snapshot that fits the log, or learns what of the log is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from penstock.claims.protocol.codec import VERSION, ForeignError, MalformedError, UnknownVersionError, check_version
from penstock.claims.protocol.fold import FOLD_VERSION
from penstock.claims.protocol.state import Claim, GroupState, MemberState, Pause
from penstock.errors import UserError
from penstock.logs.log import Partition

RECREATED = "the topic was deleted and created again"


class Snapshot(Struct, frozen=True):
    """A state, the id of the topic that it belongs to, and the broker's append time of the last record before it."""

    topic_id: str
    group: str
    appended_at: float
    state: GroupState
    epoch: int | None = None
    """Of the leader whose clock that time is."""
    pauses_left: Mapping[str, float] = {}
    """Seconds that timed pauses had left then: their ends may be by the clock of an earlier leader."""


class _Stored(Struct, frozen=True, kw_only=True):
    """A snapshot as it is written."""

    penstock: Literal[2]
    kind: Literal["Snapshot"]
    fold: int
    topic_id: str
    group: str
    appended_at: float
    epoch: int | None
    next_offset: int
    changed: int | None
    balanced: int | None
    heartbeat_seconds: float | None
    members: list[MemberState]
    pauses: dict[str, Pause]
    pauses_left: Mapping[str, float]
    target: dict[str, tuple[Partition, ...]]
    claims: list[tuple[Partition, Claim]]


_DECODER = msgspec.json.Decoder(_Stored)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    state = snapshot.state
    content = asdict(snapshot) | asdict(state)
    content |= {"members": list(state.members.values()), "claims": list(state.claims.items())}
    del content["state"]
    return msgspec.json.encode(_Stored(penstock=VERSION, kind="Snapshot", fold=FOLD_VERSION, **content))


def decode_snapshot(content: bytes | None, group: str) -> Snapshot:
    """The snapshot of a group in these bytes; UnknownVersionError if another version wrote it: the group is not new.

    ForeignError or MalformedError if they hold none.
    """
    fold = check_version(content or b"", group, "snapshot").fold
    if fold not in (None, FOLD_VERSION):
        older = isinstance(fold, int) and fold < FOLD_VERSION
        raise UnknownVersionError(f"a snapshot of fold {fold!r} instead of {FOLD_VERSION}", group, older)
    try:
        stored = _DECODER.decode(content or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a snapshot: {error}") from None
    if stored.group != group:
        raise MalformedError(f"written for group {stored.group}")
    result = asdict(stored)
    result |= {"members": {member.who.client_id: member for member in stored.members}, "claims": dict(stored.claims)}
    result["state"] = GroupState(**{field: result[field] for field in GroupState.__struct_fields__})
    return Snapshot(**{struct_field: result[struct_field] for struct_field in Snapshot.__struct_fields__})


def snapshots_of(group: str, contents: Iterable[bytes | None]) -> list[Snapshot]:
    """The snapshots of a group, in the order in which they were written; anything else is skipped."""
    result: list[Snapshot] = []
    for content in contents:
        with suppress(ForeignError, MalformedError):
            result.append(decode_snapshot(content, group))
    return result


# where to start reading


class LostHistoryError(UserError):
    """The log and its snapshots do not fit together, so the owners are unknown (RULES M7)."""

    def __init__(self, topic: str, group: str, what: str) -> None:
        super().__init__(
            f"the history of group {group} in coordination topic {topic} is lost: {what}",
            detail="owners and positions of partitions cannot be recovered from what is left",
            hint="stop every process of the group and name a new coordination topic in all of them: `claims.topic` "
            "(library: `CoordinationOptions(topic=...)`); tables keep their tokens and positions, a group of the "
            "library begins at `start`",
        )


class ReadingStart(Struct, frozen=True):
    """A reader begins with `snapshot` (None: with nothing) at `offset`; `fault` is what of the history is lost."""

    snapshot: Snapshot | None
    offset: int
    fault: str = ""


def reading_start(
    snapshots: Sequence[Snapshot],
    topic_id: str,
    bounds: tuple[int, int],
    holds: Callable[[int, float], bool],
) -> ReadingStart:
    """The snapshot of a group with the highest event position: late writers may append an older one after a newer.

    A snapshot that names more than the log holds, or another record than the log has there, shows that the log was cut.
    `holds` shows whether the record at an offset was appended at that time.
    """
    first, end = bounds
    ours = [snapshot for snapshot in snapshots if snapshot.topic_id == topic_id]
    if snapshots and not ours:
        return ReadingStart(None, first, RECREATED)
    for snapshot in ours:
        last = snapshot.state.next_offset - 1
        if last >= end or (last >= first and not holds(last, snapshot.appended_at)):
            return ReadingStart(None, first, f"it was cut below {last + 1}, and holds [{first}, {end})")
    newest = max(ours, key=lambda snapshot: snapshot.state.next_offset, default=None)
    if newest is None:
        # A group without a snapshot is new, however old the log is.
        return ReadingStart(None, first)
    offset = newest.state.next_offset
    if offset < first and any(member.present for member in newest.state.members.values()):
        return ReadingStart(None, first, f"no snapshot covers the deleted records {offset} to {first - 1}")
    # A group without members has appended nothing since its last snapshot.
    return ReadingStart(newest, max(first, offset))
