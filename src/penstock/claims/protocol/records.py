"""The records that members of a group append to its coordination partition, each a frozen value.

A record proposes; the fold (`fold.py`) accepts or refuses it, and every reader reaches the same verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Annotated

from msgspec import Meta, Struct

from penstock.logs.log import Partition

TEXT_CHARACTERS_MAX = 512
"""The longest client id, group, topic or reason."""
NUMBER_MAX = 2**63 - 1
SECONDS_MAX = 2**31

Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
Count = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Seconds = Annotated[float, Meta(gt=0, le=SECONDS_MAX)]


class MemberId(Struct, frozen=True, array_like=True, order=True, forbid_unknown_fields=True):
    """One process of a member: the client id survives a restart, the nonce does not (RULES M3)."""

    client_id: Text
    nonce: Text


class _RecordPart(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a record."""


class RequestedTopic(_RecordPart, frozen=True):
    """The partitions of one topic that a member shares in, as half-open spans of their numbers."""

    topic: Text
    topic_id: Text
    spans: tuple[tuple[Count, Count], ...]


class Beat(_RecordPart, frozen=True):
    """How far the owner of a partition is: `position` is the next offset to process, None where none is known.

    `seeks` is the number of seeks that its sender had read: an older position does not undo a newer seek.
    """

    partition: Partition
    token: Count
    position: Count | None = None
    lag: Count = 0
    seeks: Count = 0


class ClaimRequest(_RecordPart, frozen=True):
    """One partition to claim, if its token is still that. `floor` is its table's token (RULES M1)."""

    partition: Partition
    if_token: Count = 0
    floor: Count = 0


class _AnyRecord(Struct, frozen=True, kw_only=True, tag_field="kind", tag=True, forbid_unknown_fields=True):
    """The fields of every record. `seq` counts the records of one process, so that it recognises them in the log."""

    who: MemberId
    seq: Count


class JoiningGroup(_AnyRecord, frozen=True, kw_only=True):
    """Take a client id: a compare and swap on the last record of the process that had it before (RULES M3).

    All members of a group need the same heartbeat interval.
    """

    if_last: Count | None
    heartbeat_seconds: Seconds
    wants: tuple[RequestedTopic, ...]


class LeavingGroup(_AnyRecord, frozen=True, kw_only=True):
    """The sender leaves the group and gives up everything it holds, at these positions."""

    beats: tuple[Beat, ...] = ()


class ForgettingMember(_AnyRecord, frozen=True, kw_only=True):
    """A member has been silent for too long: all that it holds becomes free, and an absent one is forgotten.

    A compare and swap on its last record: any later record of the member defeats it.
    """

    client_id: Text
    if_last: Count


class BalancingGroup(_AnyRecord, frozen=True, kw_only=True):
    """Compute the target again, from the state at this record; `if_changed` is the last change that it is about."""

    if_changed: Count


class Heartbeat(_AnyRecord, frozen=True, kw_only=True, omit_defaults=True):
    """Renews the sender and everything it holds; it carries only what has changed since its last record."""

    wants: tuple[RequestedTopic, ...] | None = None
    beats: tuple[Beat, ...] = ()


class ClaimingPartition(_AnyRecord, frozen=True, kw_only=True):
    """Claim free partitions, each if nothing changed since the sender looked; each has a verdict of its own."""

    requests: tuple[ClaimRequest, ...]


class ReleasingPartition(_AnyRecord, frozen=True, kw_only=True):
    """Release partitions at these positions."""

    beats: tuple[Beat, ...]
    reason: Text = ""


class _AboutPartition(_AnyRecord, frozen=True, kw_only=True):
    partition: Partition


class ClaimingMessages(_AboutPartition, frozen=True, kw_only=True):
    """Claim every message below `end` for processing at most once: no member will process them again.

    `if_seeks` as in a seek: what was claimed before a seek does not count after it.
    """

    token: Count
    if_seeks: Count = 0
    end: Count


class Seeking(_AboutPartition, frozen=True, kw_only=True):
    """Set the position, the only record that may lower it; sent by the owner, or for a free partition.

    `if_seeks` is the number of seeks that its sender had read: one that arrives twice counts once.
    """

    if_token: Count
    if_seeks: Count = 0
    position: Count
    reason: Text = ""


class FreeingPartition(_AboutPartition, frozen=True, kw_only=True):
    """An administrator frees a partition: a higher token fences its owner, and another member, if any, gets it."""

    if_token: Count
    position: Count | None = None
    reason: Text = ""


class ForgettingPartitions(_AnyRecord, frozen=True, kw_only=True):
    """Forget free partitions that no member requests any more."""

    partitions: tuple[Partition, ...]


class ReleaseGroup(_AnyRecord, frozen=True, kw_only=True):
    """Pause a group: members release everything and claim nothing, for that long by the broker's clock (RULES M4)."""

    pause_id: Text
    for_seconds: Seconds | None = None
    reason: Text = ""


class ResumingGroup(_AnyRecord, frozen=True, kw_only=True):
    """End the pause with that id; nothing else ends it."""

    pause_id: Text


PartitionRecord = ClaimingMessages | Seeking | FreeingPartition
MemberRecord = JoiningGroup | LeavingGroup | ForgettingMember | Heartbeat
GroupRecord = BalancingGroup | ReleaseGroup | ResumingGroup | ForgettingPartitions
AnybodysRecord = JoiningGroup | ForgettingMember | ReleaseGroup | ResumingGroup | Seeking | FreeingPartition
"""Records that count also from a process that is not a member."""
Record = PartitionRecord | MemberRecord | GroupRecord | ClaimingPartition | ReleasingPartition


def partitions_of(record: Record) -> tuple[Partition, ...]:
    """The partitions that a record is about."""
    match record:
        case ClaimingPartition():
            return tuple(request.partition for request in record.requests)
        case ReleasingPartition() | LeavingGroup() | Heartbeat():
            return tuple(beat.partition for beat in record.beats)
        case ForgettingPartitions():
            return record.partitions
        case JoiningGroup() | ForgettingMember() | BalancingGroup() | ReleaseGroup() | ResumingGroup():
            return ()
        case _:
            return (record.partition,)


def requested_topics(partitions: Iterable[Partition]) -> tuple[RequestedTopic, ...]:
    """Partitions as they are written in records, in a fixed order."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for partition in sorted(set(partitions), key=attrgetter("topic", "topic_id", "number")):
        numbers.setdefault((partition.topic, partition.topic_id), []).append(partition.number)
    return tuple(RequestedTopic(*topic, _spans(number)) for topic, number in numbers.items())


def _spans(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number:
            spans[-1] = (spans[-1][0], number + 1)
        else:
            spans.append((number, number + 1))
    return tuple(spans)
