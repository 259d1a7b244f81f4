"""What an accepted proposal does to a Delta table: app transactions, files, provenance, and the state afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from penstock.flow.write.manifest import StagedFile
from penstock.lake.delta.keys import field_key, position_key, topic_fingerprint, topic_key
from penstock.lake.delta.provenance import CommitSlice, CommitStart, Provenance, placed
from penstock.lake.proposal import FencePart, Part, Proposal, SlicePart, StartPart
from penstock.lake.state import TOTAL_NAMES, DeltaPartition, DeltaState
from penstock.logs.log import Partition


@dataclass(frozen=True, slots=True)
class Effect:
    """What accepted parts do to a table: app transactions, files, and the state afterwards."""

    transactions: Mapping[str, int]
    files: tuple[StagedFile, ...]
    metadata: Mapping[str, Any]
    state: Mapping[Partition, DeltaPartition]
    fingerprints: Mapping[str, int]


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
    of_slices = (file for part in accepted if isinstance(part, SlicePart) for file in part.files)
    files = (*of_slices, *proposal.files)
    return Effect(transactions, files, _metadata(proposal, accepted, files), after, fingerprints)


def _after(part: Part, before: DeltaPartition) -> DeltaPartition:
    match part:
        case StartPart():
            # The table of a type may have got replayed rows of a partition before any other.
            return DeltaPartition(
                position=part.offset,
                origin=part.offset,
                token=part.token,
                totals=before.totals,
                numbers=part.numbers.on(before.numbers),
            )
        case SlicePart():
            return replace(
                before,
                position=part.piece.end,
                origin=part.piece.start if part.begins else before.origin,
                token=part.token,
                totals=before.totals + part.totals,
                quarantine_mark=part.piece.end if part.quarantine_files else before.quarantine_mark,
                mark=part.mark or before.mark,
                numbers=part.numbers.on(before.numbers),
            )
        case FencePart():
            totals, numbers = before.totals + part.totals, part.numbers.on(before.numbers)
            return replace(before, token=part.token, totals=totals, numbers=numbers)
        case _:
            assert_never(part)


def _changes(job: str, partition: Partition, before: DeltaPartition, after: DeltaPartition) -> dict[str, int]:
    """The app transactions that turn one state into the next. The position is always there: it makes rivals collide."""
    fields = {"token": after.token}
    if after.origin is not None and after.origin != before.origin:
        fields["origin"] = after.origin
    if after.quarantine_mark is not None and after.quarantine_mark != before.quarantine_mark:
        fields["quarantine"] = after.quarantine_mark
    if after.mark is not None and after.mark != before.mark:
        fields |= {"epoch": after.mark.epoch, "epoch_end": after.mark.end}
    totals = {name: (getattr(before.totals, name), getattr(after.totals, name)) for name in TOTAL_NAMES}
    fields |= {name: total for name, (known, total) in totals.items() if total != known}
    fields |= {name: number for name, number in after.numbers.items() if number != before.numbers.get(name)}
    position = {} if after.position is None else {position_key(job, partition): after.position}
    return {**position, **{field_key(job, partition, name): number for name, number in fields.items()}}


def _metadata(proposal: Proposal, accepted: tuple[Part, ...], files: tuple[StagedFile, ...]) -> dict[str, Any]:
    """What `history` shows of the commit. The library names the operation; the streaming fields are ours."""
    provenance = Provenance(
        kind=_kind(accepted),
        job=proposal.job,
        batch=proposal.batch_id,
        slices=tuple(
            CommitSlice(
                *placed(part.partition), part.piece.start, part.piece.end, part.token, part.totals, part.quarantine_files
            )
            for part in accepted
            if isinstance(part, SlicePart)
        ),
        starts=tuple(
            CommitStart(*placed(item.partition), item.offset) for item in accepted if isinstance(item, StartPart)
        ),
        rows=proposal.rows + sum(file.rows for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        files_removed=len(proposal.removes),
        files_added=len(files) if proposal.removes else 0,
    )
    return {
        # What Spark's DESCRIBE HISTORY shows of a commit that it did not make.
        "userMetadata": f"penstock {proposal.job} {provenance.kind} {proposal.batch_id}",
        "queryId": proposal.job,
        "outputMode": "Append",
        **provenance.metadata,
    }


def _kind(accepted: tuple[Part, ...]) -> str:
    """One word for people who read the history: the weightiest part names the commit."""
    kinds = {type(part) for part in accepted}
    names = {SlicePart: "batch", StartPart: "start", FencePart: "fence"}
    return next(name for kind, name in names.items() if kind in kinds)
