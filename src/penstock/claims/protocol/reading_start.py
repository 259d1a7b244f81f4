"""Where a reader starts: the snapshot that fits the log, or the error that says what of the log is lost (RULES M7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.claims.protocol.snapshots import Snapshot
from penstock.claims.protocol.state import Group
from penstock.errors import UserError

RECREATED = "the topic was deleted and created again"


class LostHistoryError(UserError):
    """The log and its snapshots do not fit together, so who owns what is unknown (RULES M7)."""

    def __init__(self, topic: str, group: str, what: str) -> None:
        super().__init__(
            f"the history of group {group} in coordination topic {topic} is lost: {what}",
            detail="who owns which partition, and how far it is, cannot be known from what is left",
            hint="stop every process of the group and set `claims.lost_history: restart` "
            "(library: `restart_lost_history=True`) for the next start: it goes on from the last snapshot's tokens "
            "and positions, and tables keep their own",
        )


@dataclass(frozen=True, slots=True)
class ReadingStart:
    """A reader begins with `snapshot` (None: with nothing) at `offset`; `lost` is the newest state that does not count.

    `fault` says what is lost.
    """

    snapshot: Snapshot | None
    offset: int
    lost: Group | None = None
    fault: str = ""
    recreated: bool = False


def reading_start(
    snapshots: Sequence[Snapshot],
    topic_id: str,
    bounds: tuple[int, int],
    fits: Callable[[Snapshot], bool],
) -> ReadingStart:
    """Choose among a group's snapshots, in the order in which they were written.

    The highest event position counts, as late writers may append an older one after a newer. A snapshot that names more
    than the log holds, or another record than the log has there, is of a log that was cut: unless a snapshot that fits
    was written after it, that is a loss.
    """
    first, end = bounds
    ours = [each for each in snapshots if each.topic_id == topic_id]
    fitting = [each.state.next_offset <= end and fits(each) for each in ours]
    good = [each for each, fit in zip(ours, fitting, strict=True) if fit]
    chosen = max(good, key=lambda each: each.state.next_offset, default=None)
    offset = 0 if chosen is None else chosen.state.next_offset
    # By place: two members may have written the same.
    after = ours[len(ours) - fitting[::-1].index(True) :] if good else ours
    if after:
        known = after[-1].state.next_offset
        return ReadingStart(
            chosen, max(first, offset), after[-1].state, f"it was cut below {known}, and holds [{first}, {end})"
        )
    if chosen is not None and offset < first and any(each.present for each in chosen.state.members.values()):
        fault = f"no snapshot covers the deleted records {offset} to {first - 1}"
        return ReadingStart(chosen, first, chosen.state, fault)
    if snapshots and not ours:
        return ReadingStart(None, first, snapshots[-1].state, RECREATED, recreated=True)
    # A group without a snapshot is new, and one without members has said nothing since its last one.
    return ReadingStart(chosen, max(first, offset))
