"""The invariants of a table's own numbers: totals, and slices of the commit history. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.lake.state import TOTAL_NAMES, PartitionState, Totals
from penstock.logs.log import Partition
from penstock.proof.findings import Check, Violation, ViolationKind, violation_at

_COUNTED = tuple(name for name in TOTAL_NAMES if name != "replayed")
"""A slice never replays: that total is moved by replay commits alone."""


@dataclass(frozen=True, slots=True)
class CommittedSlice:
    """Offsets `[start, end)` with what the history of the table says became of them."""

    start: int
    end: int
    totals: Totals
    version: int | None = 0
    """None for several slices that history has forgotten: only the sum of their counts is known."""

    @property
    def read_from(self) -> int:
        """The offsets below are a gap; where the gaps of forgotten slices lie is not known."""
        return self.start if self.version is None else self.start + self.totals.gap

    @property
    def unfiltered(self) -> bool:
        """Whether every record that the log has of it must be in the table or in quarantine."""
        totals = self.totals
        left_out = totals.filtered + totals.skipped + totals.given_up + totals.deferred + totals.vanished
        return not left_out

    @property
    def full(self) -> bool:
        """Whether every offset from `read_from` on must be there: no hole, nothing left out."""
        return self.unfiltered and not self.totals.holes and self.totals.gap == self.read_from - self.start

    @property
    def held(self) -> int:
        """How many offsets are in table or quarantine; a replay moves them from one to the other."""
        return self.totals.written + self.totals.quarantined

    @property
    def held_min(self) -> int:
        """How many must be there, by the counts and by the offsets."""
        return max(self.held, self.end - self.read_from) if self.full else self.held

    @property
    def held_max(self) -> int:
        """With what was deferred at the time and has been caught up since."""
        return self.held + self.totals.deferred


States = Mapping[Partition, PartitionState]
Slices = Mapping[Partition, Sequence[CommittedSlice]]
"""Per partition the slices that history still has, in ascending order."""
_Fault = tuple[Violation, str]


def check_totals(states: States) -> Check:
    """Every offset between origin and position is accounted for, and so is every record that was read (I3)."""
    read = sum(state.totals.read for state in states.values())
    detail = f"{read} records read in {len(states)} partitions, each accounted for"
    return _check("totals", states, _totals_fault, detail, {"read": read})


def check_slices(states: States, slices: Slices) -> Check:
    """The retained slices touch, end at the position, conserve, and add up with what came before them (I2, I3)."""
    count = sum(map(len, slices.values()))
    whole = all(_is_whole(state, slices.get(partition, ())) for partition, state in states.items())
    detail = f"{count} slices of the {'whole' if whole else 'retained'} history touch and add up"
    facts = {"slices": count, "whole_history": int(whole)}
    return _check(
        "slices", states, lambda place, state: _slices_fault(place, state, slices.get(place, ())), detail, facts
    )


def _check(
    name: str,
    states: States,
    fault_of: Callable[[Partition, PartitionState], _Fault | None],
    detail: str,
    facts: Mapping[str, int],
) -> Check:
    """An invariant of every partition; `detail` is what holds."""
    faults = {partition: fault for partition, state in sorted(states.items()) if (fault := fault_of(partition, state))}
    wrong = "; ".join(f"{partition}: {text}" for partition, (_, text) in faults.items())
    violations = [violation for violation, _ in faults.values()]
    return Check(name, wrong or detail, bool(faults), violations=violations, facts=facts, checked=states)


def _totals_fault(partition: Partition, state: PartitionState) -> _Fault | None:
    totals, origin, position = state.totals, state.origin, state.position
    left = totals.unaccounted
    if position is None or origin is None:
        text = "has no position or no origin"
    elif position - origin != totals.offsets:
        text = f"[{origin}, {position}) has {position - origin} offsets, {totals.offsets} counted"
    elif left:
        text = f"{totals.read} read, {abs(left)} {'unaccounted for' if left > 0 else 'too many accounted for'}"
    elif not 0 <= totals.replayed <= totals.quarantined:
        text = f"{totals.replayed} replayed of {totals.quarantined} quarantined"
    else:
        return None
    return violation_at(partition, origin or 0, ViolationKind.NOT_COUNTED, max(position or 0, 0)), text


def _slices_fault(partition: Partition, state: PartitionState, slices: Sequence[CommittedSlice]) -> _Fault | None:
    if state.origin is None or state.position is None or not slices:
        return None
    if slices[0].start < state.origin:
        violation = violation_at(partition, slices[0].start, ViolationKind.BEFORE_ORIGIN)
        return violation, f"a slice starts before {state.origin}"
    for one, other in pairwise(slices):
        if one.end < other.start:
            text = f"no slice holds [{one.end}, {other.start}), before version {other.version}"
            return violation_at(partition, one.end, ViolationKind.HOLE), text
        if one.end > other.start:
            text = f"versions {one.version} and {other.version} both hold [{other.start}, {min(one.end, other.end)})"
            return violation_at(partition, other.start, ViolationKind.OVERLAP), text
    newest = slices[-1].end
    text = f"slices end at {newest}, the position is {state.position}"
    if newest < state.position:
        return violation_at(partition, newest, ViolationKind.HOLE), text
    if newest > state.position:
        return violation_at(partition, state.position, ViolationKind.BEYOND_POSITION), text
    return _counts_fault(partition, state, slices)


def _counts_fault(partition: Partition, state: PartitionState, slices: Sequence[CommittedSlice]) -> _Fault | None:
    for piece in slices:
        if piece.totals.offsets != piece.end - piece.start or not piece.totals.conserved:
            text = f"the counts of version {piece.version} do not add up over [{piece.start}, {piece.end})"
            return violation_at(partition, piece.start, ViolationKind.NOT_COUNTED, piece.end), text
    rest = _rest(state, slices)
    origin, oldest = state.origin or 0, slices[0].start
    negative = min(getattr(rest, name) for name in _COUNTED) < 0
    if rest.offsets != oldest - origin or not rest.conserved or negative or (oldest == origin and rest != Totals()):
        text = f"the retained slices and the totals differ by {rest}, with [{origin}, {oldest}) before them"
        return violation_at(partition, origin, ViolationKind.NOT_COUNTED, state.position), text
    return None


def _rest(state: PartitionState, slices: Sequence[CommittedSlice]) -> Totals:
    """What the totals hold beyond the retained slices."""
    retained = sum((piece.totals for piece in slices), Totals())
    return Totals(**{name: getattr(state.totals, name) - getattr(retained, name) for name in _COUNTED})


def _is_whole(state: PartitionState, slices: Sequence[CommittedSlice]) -> bool:
    return state.position == state.origin if not slices else slices[0].start == state.origin


def spans(partition: Partition, state: PartitionState, slices: Sequence[CommittedSlice]) -> tuple[CommittedSlice, ...]:
    """All of `[origin, position)`: the retained slices, and one that stands for all before them.

    Slices that break the invariant are no ground to build on: then one stands for all.
    """
    if state.origin is None or state.position is None:
        return ()
    if not slices or _slices_fault(partition, state, slices) is not None:
        return (CommittedSlice(state.origin, state.position, state.totals, None),)
    if slices[0].start == state.origin:
        return tuple(slices)
    return CommittedSlice(state.origin, slices[0].start, _rest(state, slices), None), *slices
