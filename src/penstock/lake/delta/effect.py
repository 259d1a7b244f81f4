"""What an accepted proposal does to a Delta table: app transactions, files, and the record of the commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from penstock.flow.write.manifest import StagedFile
from penstock.lake.delta.keys import field_key, position_key, topic_fingerprint, topic_key
from penstock.lake.delta.provenance import CommitSlice, CommitStart, Provenance, placed
from penstock.lake.proposal import FencePart, Proposal, ProposalPart, SlicePart, StartPart
from penstock.lake.state import TOTAL_NAMES, DeltaPartition, DeltaState, Totals


@dataclass(frozen=True, slots=True)
class Effect:
    """The commit of accepted parts: app transactions, files and metadata."""

    transactions: Mapping[str, int]
    files: tuple[StagedFile, ...]
    metadata: Mapping[str, Any]


def effect(proposal: Proposal, accepted: tuple[ProposalPart, ...], state: DeltaState) -> Effect:
    """The commit of the accepted parts on top of a state."""
    transactions = dict(proposal.extra)
    for part in accepted:
        transactions |= _changes(proposal.job, part, state.of(part.partition))
        if isinstance(part, StartPart):
            transactions[topic_key(proposal.job, part.partition.topic)] = topic_fingerprint(part.partition.topic_id)
    of_slices = (file for part in accepted if isinstance(part, SlicePart) for file in part.files)
    files = (*of_slices, *proposal.files)
    return Effect(transactions, files, _metadata(proposal, accepted, files))


def _changes(job: str, part: ProposalPart, before: DeltaPartition) -> dict[str, int]:
    """The app transactions of a part. The position is always among them: it makes rival commits conflict."""
    position, added, fields = before.position, Totals(), {"token": part.token}
    match part:
        case StartPart():
            position = fields["origin"] = part.offset
        case SlicePart():
            position, added = part.piece.end, part.totals
            if part.begins:
                fields["origin"] = part.piece.start
            if part.quarantine_files:
                fields["quarantine"] = part.piece.end
            if part.mark is not None:
                fields |= {"epoch": part.mark.epoch, "epoch_end": part.mark.end}
        case FencePart():
            added = part.totals
        case _:
            assert_never(part)
    totals, numbers = before.totals + added, part.numbers.on(before.numbers)
    fields |= {name: getattr(totals, name) for name in TOTAL_NAMES if getattr(added, name)}
    fields |= {name: number for name, number in numbers.items() if number != before.numbers.get(name)}
    changes = {} if position is None else {position_key(job, part.partition): position}
    return {**changes, **{field_key(job, part.partition, name): number for name, number in fields.items()}}


def _metadata(proposal: Proposal, accepted: tuple[ProposalPart, ...], files: tuple[StagedFile, ...]) -> dict[str, Any]:
    """The metadata of the commit: what the history of the table shows."""
    shown = (*files, *proposal.files_elsewhere)
    provenance = Provenance(
        kind=_kind(accepted),
        job=proposal.job,
        batch=proposal.batch_id,
        slices=tuple(
            CommitSlice(
                *placed(part.partition),
                part.piece.start,
                part.piece.end,
                part.token,
                part.totals,
                part.quarantine_files,
                proposal.log_ends.get(part.partition),
            )
            for part in accepted
            if isinstance(part, SlicePart)
        ),
        starts=tuple(
            CommitStart(*placed(part.partition), part.offset) for part in accepted if isinstance(part, StartPart)
        ),
        rows=sum(file.rows for file in shown),
        size_bytes=sum(file.written_bytes for file in shown),
        quarantined=proposal.counts_elsewhere.quarantined,
        filtered=proposal.counts_elsewhere.filtered,
        files_removed=len(proposal.removes),
        files_added=sum(file.vector is None for file in shown),
        steps=proposal.steps,
    )
    return {
        # What Spark's DESCRIBE HISTORY shows of a commit that it did not make.
        "userMetadata": f"penstock {proposal.job} {provenance.kind} {proposal.batch_id}",
        "queryId": proposal.job,
        "outputMode": "Append",
        **provenance.metadata,
    }


def _kind(accepted: tuple[ProposalPart, ...]) -> str:
    """The kind of the commit in the history: by its slices, else by its starts, else by its fences."""
    kinds = {type(part) for part in accepted}
    names = {SlicePart: "batch", StartPart: "start", FencePart: "fence"}
    return next(name for kind, name in names.items() if kind in kinds)
