"""What an accepted proposal does to a Delta table: app transactions, files, provenance, and the state afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from penstock.flow.write.manifest import StagedFile
from penstock.lake.delta.keys import (
    epoch_end_key,
    epoch_key,
    origin_key,
    position_key,
    quarantine_key,
    token_key,
    topic_fingerprint,
    topic_key,
    total_key,
)
from penstock.lake.proposal import FencePart, GivenUpPart, Part, Proposal, SlicePart, StartPart
from penstock.lake.state import TOTAL_NAMES, DeltaPartition, DeltaState, Totals, given_up_totals, slice_totals
from penstock.logs.log import Partition


@dataclass(frozen=True, slots=True)
class Effect:
    """What accepted parts do to a table: app transactions, files, and the state afterwards."""

    transactions: Mapping[str, int]
    files: tuple[StagedFile, ...]
    metadata: Mapping[str, Any]
    state: Mapping[Partition, DeltaPartition] = field(default_factory=dict)
    fingerprints: Mapping[str, int] = field(default_factory=dict)


def effect(proposal: Proposal, accepted: tuple[Part, ...], state: DeltaState) -> Effect:
    """Work out the commit of the accepted parts on top of a state."""
    transactions = dict(proposal.extra)
    after: dict[Partition, DeltaPartition] = {}
    fingerprints: dict[str, int] = {}
    for part in accepted:
        before = state.of(part.partition)
        after[part.partition] = _after(part, before)
        transactions |= _changes(proposal.job, part.partition, before, after[part.partition])
        if isinstance(part, StartPart):
            fingerprint = topic_fingerprint(part.partition.topic_id)
            fingerprints[part.partition.topic] = fingerprint
            transactions[topic_key(proposal.job, part.partition.topic)] = fingerprint
    slices = [part for part in accepted if isinstance(part, SlicePart)]
    return Effect(
        transactions=transactions,
        files=tuple(file for part in slices for file in part.files),
        metadata=_metadata(proposal, accepted),
        state=after,
        fingerprints=fingerprints,
    )


def _after(part: Part, before: DeltaPartition) -> DeltaPartition:
    match part:
        case StartPart():
            # The table of a type may have got replayed rows of a partition before any other.
            return DeltaPartition(position=part.offset, origin=part.offset, token=part.token, totals=before.totals)
        case SlicePart():
            return replace(
                before,
                position=part.piece.end,
                token=part.token,
                totals=before.totals + slice_totals(part.piece, part.counts),
                quarantine_mark=part.piece.end if part.quarantine_files else before.quarantine_mark,
                mark=part.mark or before.mark,
            )
        case GivenUpPart():
            totals = before.totals + given_up_totals(part.piece)
            return replace(before, position=part.piece.end, token=part.token, totals=totals)
        case FencePart():
            return replace(before, token=part.token)
        case _:
            assert_never(part)


def _changes(job: str, partition: Partition, before: DeltaPartition, after: DeltaPartition) -> dict[str, int]:
    """The app transactions that turn one state into the next. The position is always there: it makes rivals collide."""
    changes: dict[str, int] = {token_key(job, partition): after.token}
    if after.position is not None:
        changes[position_key(job, partition)] = after.position
    if after.origin is not None and after.origin != before.origin:
        changes[origin_key(job, partition)] = after.origin
    if after.quarantine_mark is not None and after.quarantine_mark != before.quarantine_mark:
        changes[quarantine_key(job, partition)] = after.quarantine_mark
    if after.mark is not None and after.mark != before.mark:
        changes[epoch_key(job, partition)] = after.mark.epoch
        changes[epoch_end_key(job, partition)] = after.mark.end
    for name in TOTAL_NAMES:
        total = getattr(after.totals, name)
        if total != getattr(before.totals, name):
            changes[total_key(job, partition, name)] = total
    return changes


def _metadata(proposal: Proposal, accepted: tuple[Part, ...]) -> dict[str, Any]:
    """What `history` shows of the commit. The library names the operation; the streaming fields are ours."""
    slices = [part for part in accepted if isinstance(part, SlicePart)]
    given_up = [part for part in accepted if isinstance(part, GivenUpPart)]
    return {
        # What Spark's DESCRIBE HISTORY shows of a commit that it did not make.
        "userMetadata": f"penstock {proposal.job} {_kind(accepted)} {proposal.batch_id}",
        "queryId": proposal.job,
        "outputMode": "Append",
        "penstock": {
            "v": 1,
            "kind": _kind(accepted),
            "job": proposal.job,
            "batch": proposal.batch_id,
            "slices": [*map(_slice_record, slices), *map(_given_up_record, given_up)],
            "starts": [
                {**_partition_record(part.partition), "offset": part.offset}
                for part in accepted
                if isinstance(part, StartPart)
            ],
            "rows": sum(file.rows for part in slices for file in part.files),
            "size_bytes": sum(file.size_bytes for part in slices for file in part.files),
        },
    }


def _kind(accepted: tuple[Part, ...]) -> str:
    """One word for people who read the history: the weightiest part names the commit."""
    kinds = {type(part) for part in accepted}
    names = {SlicePart: "batch", GivenUpPart: "given_up", StartPart: "start", FencePart: "fence"}
    return next(name for kind, name in names.items() if kind in kinds)


def _partition_record(partition: Partition) -> dict[str, Any]:
    return {"topic": partition.topic, "topic_id": partition.topic_id, "partition": partition.number}


def _slice_record(part: SlicePart) -> dict[str, Any]:
    added = slice_totals(part.piece, part.counts)
    return {
        **_partition_record(part.partition),
        "start": part.piece.start,
        "end": part.piece.end,
        "token": part.token,
        **{name: getattr(added, name) for name in TOTAL_NAMES if getattr(added, name)},
        "quarantine": [
            {"path": file.path, "rows": file.rows, "size_bytes": file.size_bytes, "stats": file.stats}
            for file in part.quarantine_files
        ],
    }


def _given_up_record(part: GivenUpPart) -> dict[str, Any]:
    return {
        **_partition_record(part.partition),
        "start": part.piece.start,
        "end": part.piece.end,
        "token": part.token,
        "given_up": part.piece.offsets,
        "quarantine": [],
    }


def totals_of_record(record: Mapping[str, Any]) -> Totals:
    """Read the counts of a slice back from commit metadata."""
    return Totals(**{name: int(record.get(name, 0)) for name in TOTAL_NAMES})
