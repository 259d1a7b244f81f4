"""The invariants of a table's own numbers: totals, and slices of the commit history. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.lake.state import TOTAL_NAMES, PartitionState, Totals
from penstock.logs.log import Partition
from penstock.proof.findings import Check, Violation, ViolationKind, conclude, violation_at

_COUNTED = tuple(name for name in TOTAL_NAMES if name != "replayed")
"""A slice never replays: that total is moved by replay commits alone."""


@dataclass(frozen=True, slots=True)
class CommittedSlice:
    """A slice as the history of the table tells it."""

    start: int
    end: int
    totals: Totals
    version: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets `[lo, hi)` with what the table says became of them; those below `read_from` are a gap."""

    lo: int
    hi: int
    read_from: int
    totals: Totals

    @property
    def unfiltered(self) -> bool:
        """Whether every record of the log in this span must be in the table or in quarantine."""
        totals = self.totals
        left_out = totals.filtered + totals.skipped + totals.given_up + totals.deferred + totals.vanished
        return not left_out

    @property
    def full(self) -> bool:
        """Whether every offset from `read_from` on must be there: no hole, nothing left out."""
        return self.unfiltered and not self.totals.holes and self.totals.gap == self.read_from - self.lo

    @property
    def held(self) -> int:
        """How many offsets are in table or quarantine; a replay moves them from one to the other."""
        return self.totals.written + self.totals.quarantined

    @property
    def held_min(self) -> int:
        """How many must be there, by the counts and by the offsets."""
        return max(self.held, self.hi - self.read_from) if self.full else self.held

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
    texts: list[str] = []
    violations: list[Violation] = []
    for partition, state in sorted(states.items()):
        fault = _totals_fault(state)
        if fault:
            texts.append(f"{partition}: {fault}")
            end = max(state.position or 0, 0)
            violations.append(violation_at(partition, state.origin or 0, ViolationKind.NOT_COUNTED, end))
    read = sum(state.totals.read for state in states.values())
    detail = "; ".join(texts) or f"{read} records read in {len(states)} partitions, each accounted for"
    return conclude("totals", detail, bool(texts), violations=violations, facts={"read": read}, partitions=states)


def _totals_fault(state: PartitionState) -> str:
    totals = state.totals
    if state.position is None or state.origin is None:
        return "has no position or no origin"
    offsets = state.position - state.origin
    if offsets != totals.offsets:
        return f"[{state.origin}, {state.position}) has {offsets} offsets, {totals.offsets} counted"
    if not totals.conserved:
        left = totals.unaccounted
        return f"{totals.read} read, {abs(left)} {'unaccounted for' if left > 0 else 'too many accounted for'}"
    if not 0 <= totals.replayed <= totals.quarantined:
        return f"{totals.replayed} replayed of {totals.quarantined} quarantined"
    return ""


def check_slices(states: States, slices: Slices) -> Check:
    """The retained slices touch, end at the position, conserve, and add up with what came before them (I2, I3)."""
    texts: list[str] = []
    violations: list[Violation] = []
    for partition, state in sorted(states.items()):
        found = _slices_fault(partition, state, slices.get(partition, ()))
        if found is not None:
            violation, text = found
            violations.append(violation)
            texts.append(f"{partition}: {text}")
    count = sum(len(each) for each in slices.values())
    whole = all(_is_whole(state, slices.get(partition, ())) for partition, state in states.items())
    reach = "the whole history" if whole else "the retained history"
    detail = "; ".join(texts) or f"{count} slices of {reach} touch and add up"
    facts = {"slices": count, "whole_history": int(whole)}
    return conclude("slices", detail, bool(texts), violations=violations, facts=facts, partitions=states)


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
    for each in slices:
        if each.totals.offsets != each.end - each.start or not each.totals.conserved:
            text = f"the counts of version {each.version} do not add up over [{each.start}, {each.end})"
            return violation_at(partition, each.start, ViolationKind.NOT_COUNTED, each.end), text
    rest = _rest(state, slices)
    origin, oldest = state.origin or 0, slices[0].start
    negative = min(getattr(rest, name) for name in _COUNTED) < 0
    if rest.offsets != oldest - origin or not rest.conserved or negative or (oldest == origin and rest != Totals()):
        text = f"the retained slices and the totals differ by {rest}, with [{origin}, {oldest}) before them"
        return violation_at(partition, origin, ViolationKind.NOT_COUNTED, state.position), text
    return None


def _rest(state: PartitionState, slices: Sequence[CommittedSlice]) -> Totals:
    """What the totals hold beyond the retained slices."""
    retained = sum((each.totals for each in slices), Totals())
    return Totals(**{name: getattr(state.totals, name) - getattr(retained, name) for name in _COUNTED})


def _is_whole(state: PartitionState, slices: Sequence[CommittedSlice]) -> bool:
    return state.position == state.origin if not slices else slices[0].start == state.origin


def spans(partition: Partition, state: PartitionState, slices: Sequence[CommittedSlice]) -> tuple[Span, ...]:
    """Cut `[origin, position)` where the counts are known: one span per retained slice, one for all before them.

    Slices that break the invariant are no ground to build on: then the totals alone give one span.
    """
    if state.origin is None or state.position is None:
        return ()
    if not slices or _slices_fault(partition, state, slices) is not None:
        return (Span(state.origin, state.position, state.origin, state.totals),)
    found = [Span(each.start, each.end, each.start + each.totals.gap, each.totals) for each in slices]
    if slices[0].start > state.origin:
        # Where its gaps lie is forgotten: with any, this span does not count as full.
        found.insert(0, Span(state.origin, slices[0].start, state.origin, _rest(state, slices)))
    return tuple(found)
