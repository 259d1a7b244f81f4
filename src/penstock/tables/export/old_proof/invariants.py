"""The invariants that a table's own numbers must obey: totals, slices, rows, and the log's bounds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.state import TOTAL_NAMES, PartitionState, Totals
from penstock.logs.log import Bounds, LostTail, Partition
from penstock.plan import LostTailError
from penstock.proof.findings import Check, PartitionFacts, Unproven, Violation, ViolationKind, conclude, violation_at

KEEP_PLACES = "remove `place: none` from the job file"
ALL_VALUES = "compare all values: `--values --all`"
_COUNTED = tuple(name for name in TOTAL_NAMES if name != "replayed")
"""A slice never replays: that total is moved by replay commits alone."""
_SILENCE = "the log tells no leader epochs: whether it was cut and grew again since it was read cannot be seen"


@dataclass(frozen=True, slots=True)
class CommittedSlice:
    """A slice as the history of the table tells it."""

    start: int
    end: int
    totals: Totals
    version: int = 0


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Offsets `[lo, hi)` with what the table says became of them; those below `read_from` are a gap."""

    lo: int
    hi: int
    read_from: int
    totals: Totals
    rough: bool = False
    """Made from files when the ledger was lost: whatever left no row counts as a hole (RULES L6)."""

    @property
    def unfiltered(self) -> bool:
        """Whether every record of the log in this span must be in the table or in quarantine."""
        totals = self.totals
        left_out = totals.filtered + totals.skipped + totals.given_up + totals.deferred + totals.vanished
        return not (self.rough or left_out)

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
        """With what was in quarantine before the ledger was lost, and came there again."""
        return self.held + 2 * self.totals.holes if self.rough else self.held

    @property
    def records_max(self) -> int:
        """How many records the log may have there."""
        totals = self.totals
        return totals.read + totals.given_up + (totals.holes if self.rough else 0)


States = Mapping[Partition, PartitionState]
Slices = Mapping[Partition, Sequence[CommittedSlice]]
"""Per partition the slices that history still has, in ascending order."""
_Fault = tuple[Violation, str]


def check_totals(states: States, further_fault: Callable[[Partition], str] = lambda _: "") -> Check:
    """Every offset between origin and position is accounted for, and so is every record that was read (I3).

    `further_fault` tells what else is wrong with a partition whose totals add up.
    """
    texts: list[str] = []
    violations: list[Violation] = []
    for partition, state in sorted(states.items()):
        fault = _totals_fault(state) or further_fault(partition)
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
        dealt_with = totals.written + totals.quarantined + totals.filtered + totals.skipped
        became = totals.read + totals.backfilled - dealt_with - totals.deferred - totals.vanished
        return f"{totals.read} read, {abs(became)} {'unaccounted for' if became > 0 else 'too many accounted for'}"
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


@dataclass(frozen=True, slots=True)
class RowCounts:
    """How many rows there are, and how many Penstock put there, over all jobs and incarnations of topics."""

    table: int
    written: int
    quarantine: int
    quarantined: int
    """Less those replayed."""
    pending: int = 0
    """Rows of quarantine files that a data commit listed and the quarantine table has yet to take (RULES Q1)."""
    replay_unfinished: bool = False


def check_rows(
    counts: RowCounts,
    faults: Sequence[str] = (),
    warnings: Sequence[str] = (),
    violations: Sequence[Violation] = (),
) -> Check:
    """The table has as many rows as were written, the quarantine as many as were quarantined and not replayed.

    `faults` are what else is wrong with the files, `violations` the rows that they name, `warnings` what else a person
    should know.
    """
    texts = list(faults)
    surplus = counts.table - counts.written
    if surplus:
        found, act = ("more", "appended") if surplus > 0 else ("less", "deleted")
        text = f"the table has {abs(surplus)} rows {found} than the {counts.written} written: {act} by another writer?"
        texts.append(text)
    in_quarantine = counts.quarantine + counts.pending
    if in_quarantine != counts.quarantined and not counts.replay_unfinished:
        texts.append(f"the quarantine has {in_quarantine} rows, {counts.quarantined} are counted")
    told = list(warnings)
    if counts.pending:
        told.append(f"{counts.pending} quarantined rows wait to be appended by the next run")
    if counts.replay_unfinished:
        told.append("a replay of the quarantine is unfinished: the next run finishes it")
    detail = "; ".join(texts) or f"{counts.table} rows in the table, {in_quarantine} in quarantine, as counted"
    facts = {"rows": counts.table, "quarantine": in_quarantine}
    return conclude("rows", detail, bool(texts), violations=violations, warnings=told, facts=facts)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What Kafka says now: topic ids, bounds of partitions that the table knows, and partitions that it does not."""

    topic_ids: Mapping[str, str]
    bounds: Mapping[Partition, Bounds]
    new: Sequence[Partition] = ()
    lost: Sequence[LostTail] = ()
    """Records that were read and that the log, by its leader epochs, does not have any more."""
    silent: frozenset[Partition] = frozenset()
    """Partitions whose leaders tell no epoch to compare that of the last record with."""


def check_log(states: States, fingerprints: Mapping[str, int], log: LogFacts) -> Check:
    """The positions lie within the log, and the log is the one that they belong to (RULES P3).

    A log that was cut and grew again past a position is told by its leader epochs, where the table keeps one.
    """
    texts = [text for topic, known in sorted(fingerprints.items()) if (text := _identity_fault(topic, known, log))]
    violations: list[Violation] = []
    warnings = [f"{each} is not started yet" for each in log.new]
    lag = 0
    for partition, state in sorted(states.items()):
        bounds = log.bounds.get(partition)
        if bounds is None or state.position is None:
            continue
        lag += max(0, bounds.end - state.position)
        if state.position > bounds.end:
            texts.append(f"{partition}: position {state.position} is beyond the log's end {bounds.end}")
            violations.append(violation_at(partition, bounds.end, ViolationKind.BEYOND_POSITION, state.position))
        elif state.position < bounds.first:
            warnings.append(f"{partition}: a gap is ahead, the log no longer has [{state.position}, {bounds.first})")
    for lost in log.lost:
        cut = LostTailError(lost.partition, lost.mark, lost.end)
        texts.append(f"{cut.primary} ({cut.detail})")
        first = (states[lost.partition].origin or 0) if lost.end is None else lost.end
        violations.append(violation_at(lost.partition, first, ViolationKind.NOT_IN_LOG, lost.mark.end))
    compared = sum(states[each].mark is not None for each in log.bounds) - len(log.silent)
    detail = "; ".join(texts) or (
        f"{len(log.bounds)} positions lie within the log, {lag} offsets before its end; "
        f"leader epochs compared in {compared}"
    )
    return conclude(
        "log",
        detail,
        bool(texts),
        violations=violations,
        unproven=[Unproven(_SILENCE, "brokers that keep leader epochs", log.silent)] if log.silent else [],
        warnings=warnings,
        facts={"lag_records": lag, "epochs_compared": compared},
        partitions=log.bounds,
    )


def _identity_fault(topic: str, known: int, log: LogFacts) -> str:
    now = log.topic_ids.get(topic)
    if now is None:
        return f"topic {topic} is gone"
    return "" if topic_fingerprint(now) == known else f"topic {topic} was recreated: the positions are of the old one"


def partition_facts(states: States, log: LogFacts) -> tuple[PartitionFacts, ...]:
    found = []
    for partition, state in sorted(states.items()):
        bounds = log.bounds.get(partition)
        first, end = (bounds.first, bounds.end) if bounds else (None, None)
        found.append(PartitionFacts(partition, state.origin or 0, state.position or 0, state.totals, first, end))
    return tuple(found)
