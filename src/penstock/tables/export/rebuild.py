"""Restores lost logs: those of plain types from their files, the job log from the logs of types (RULES E6).

The log of a type has all its records below its own position and none above. The job log starts over at the lowest
position of its types: types that are ahead skip what they have. The logs of types come first and the job log last, so a
rebuild that was interrupted is run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.environment import new_batch_id
from penstock.flow.columns.fitting import folded
from penstock.flow.write.manifest import Counts
from penstock.flow.write.names import SUFFIX
from penstock.job.spec import StartAt
from penstock.lake.delta.keys import (
    field_key,
    flow_key,
    jobs_with_positions,
    position_key,
    replay_key,
    topic_fingerprint,
    topic_key,
)
from penstock.lake.delta.provenance import CommitStart, Provenance, placed, provenance_of
from penstock.lake.delta.table import QUARANTINE_FOLDER, Change, Table
from penstock.lake.proposal import Proposal, SlicePart
from penstock.logs.log import Bounds, Partition, Slice
from penstock.tables.export.days import day_key
from penstock.tables.export.known_files import own_files, unknown_file
from penstock.tables.export.logs import REPLAYED_END, ExportLogs, type_totals
from penstock.tables.export.names import parse_final_name
from penstock.tables.export.state import FORMER_QUARANTINED, UNKNOWN_TOPIC, incarnation_key, parse_state, type_key
from penstock.tables.export.written_files import PlainFiles, prove, read_files
from penstock.tables.quarantine.replay import run_number
from penstock.tables.quarantine.table import Listings, discard, listed_marks

_LAST = 2**63


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What was restored; with doubts, nothing was."""

    doubts: tuple[str, ...] = ()
    types: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Types whose logs were restored, with files and rows."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """Of the job log, by partition."""
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.doubts

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def lines(self) -> Iterator[str]:
        for name, counts in self.types.items():
            yield f"type {name}: restored from {counts['files']} files with {counts['rows']} rows"
        for partition, position in self.positions.items():
            yield f"{partition}: position {position}"
        yield from self.notes
        yield from (f"doubt: {doubt}" for doubt in self.doubts)
        if self.doubts:
            yield "nothing was changed"


def rebuild(logs: ExportLogs, bounds: Mapping[Partition, Bounds]) -> RebuildReport:
    """Restore the logs that are missing, or name what prevents it; `bounds` are of the topics as they are now.

    The logs of plain types are restored together, because the footers of each type count the files of the others.
    """
    state, home = logs.state(), logs.places.home
    intact = {name for name, log in logs.type_logs() if _has_positions(log)}
    doubts = [f"the log of type {name} cannot be read: {reason}" for name, reason in logs.unreadable.items()]
    if state.partitions:
        lost = [*logs.replaced_logs(state), *filter(None, [unknown_file(logs)])]
        doubts += [f"{name} is not in the logs: move {home}/_delta_log and {home}/types away" for name in lost]
        return RebuildReport(tuple(doubts), notes=() if doubts else ("the logs exist and agree: nothing was changed",))
    files, lost = PlainFiles(), sorted(_types_with_files(logs) - intact)
    numbers: dict[str, dict[Partition, dict[str, int]]] = {}
    if logs.is_plain and lost and not intact:
        files = read_files(logs, sorted(own_files(logs, ""), key=lambda entry: entry.path))
        doubts += files.doubts
        for name in sorted(files.files):
            numbers[name], broken = prove(name, files.written)
            doubts += broken
    elif lost:
        restore = f"move {home}/types away, and all are restored" if logs.is_plain else "restore its _delta_log"
        doubts += [f"type {name} has lost its log and others have not: {restore}" for name in lost]
    elif not intact:
        doubts.append("there are neither positions nor data files of this job")
    if doubts:
        return RebuildReport(tuple(doubts))
    types = {}
    for name, partitions in numbers.items():
        _restore_type(logs, name, files, partitions)
        types[name] = {"files": len(files.files[name]), "rows": sum(file.rows for file in files.files[name])}
    return replace(_restore_job(logs, bounds), types=types)


def _types_with_files(logs: ExportLogs) -> set[str]:
    """The types that have data files, plain ones of this job or those of a Delta table."""
    if logs.is_plain:
        return {entry.path.split("/")[0] for entry in own_files(logs, "")}
    names = logs.export.types
    return {name for name in names if any(entry.path.endswith(SUFFIX) for entry in logs.storage.list(name))}


def _has_positions(log: Table) -> bool:
    return log.job in jobs_with_positions(log.transactions())


def _restore_type(
    logs: ExportLogs, name: str, files: PlainFiles, partitions: Mapping[Partition, Mapping[str, int]]
) -> None:
    """Create the log of a type, and enter all its files and positions with one commit."""
    job, computed = logs.job.name, {folded(column) for column in logs.job.columns}
    logs.add_columns(name, pa.schema([column for column in files.schemas[name] if folded(column.name) not in computed]))
    log = logs.find_type_log(name)
    assert log is not None
    numbers = {day_key(job, str(file.partition_values["day"])): 0 for file in files.files[name]}
    numbers[replay_key(job)] = max(file.run for file in files.written if file.type == name)
    for partition, known in partitions.items():
        numbers |= {field_key(job, partition, what): number for what, number in known.items() if what != "position"}
        numbers[position_key(job, partition)] = known["position"]
    finals = {file.topic_id: parse_final_name(file.path) for file in files.written if not file.run}
    order = {topic_id: final.incarnation for topic_id, final in finals.items() if final is not None}
    oldest_first = sorted(partitions, key=lambda partition: (order.get(partition.topic_id, 0), partition))
    starts = tuple(CommitStart(*placed(partition), partitions[partition]["origin"]) for partition in oldest_first)

    def decide() -> Change | None:
        added = Change([], numbers, Provenance(kind="rebuild", job=job, starts=starts).metadata)
        return None if _has_positions(log) else replace(added, actions=[*map(log.add_action, files.files[name])])

    log.swap(decide, "rebuilding")


def _restore_job(logs: ExportLogs, bounds: Mapping[Partition, Bounds]) -> RebuildReport:
    """Create the job log, and enter positions and types with one commit."""
    job, job_log = logs.job.name, logs.create_job_log()
    types = dict(logs.type_logs())
    topics = _topics(logs, types, bounds)
    run = max(map(run_number, types.values()), default=0)
    numbers = {type_key(job, name): logs.log_id(name) for name in logs.export.types} | {replay_key(job): run}
    for topic, (topic_id, incarnation) in topics.items():
        numbers |= {topic_key(job, topic): topic_fingerprint(topic_id), incarnation_key(job, topic): incarnation}
    current = {topic_id: topic for topic, (topic_id, _) in topics.items()}
    own = {name: parse_state(log.version, log.transactions(), job).partitions for name, log in types.items()}
    partitions = [
        Partition(current.get(key[0], UNKNOWN_TOPIC), *key)
        for key in sorted({key for known in own.values() for key, here in known.items() if here.position is not None})
    ]
    for name, log in types.items():
        _go_on_from(logs, name, log, partitions)
    positions: dict[str, int] = {}
    notes = list(_quarantine_notes(logs, job_log, run))
    for partition in partitions:
        key = (partition.topic_id, partition.number)
        origins = [parts[key].origin for parts in own.values() if key in parts]
        # Where no log of a type has a position, it is read from where the job began.
        begun = 0 if logs.job.log.start is StartAt.EARLIEST else min(origin for origin in origins if origin is not None)
        ends = {name: logs.position(name, partition) or begun for name in logs.export.types}
        position = max(ends.values())
        if key[0] in current:
            first = bounds[partition].first if partition in bounds else 0
            position = positions[str(partition)] = min(max(min(ends.values()), first), position)
            notes += [
                f"{partition}: offsets {end} to {position - 1} are gone from the topic, type {name} may lack some"
                for name, end in ends.items()
                if end < position
            ]
        totals = type_totals(logs, partition)
        known = {"origin": begun, "holes": position - begun, "restored": totals.accounted}
        known[FORMER_QUARANTINED] = totals.quarantined - totals.replayed
        numbers |= {field_key(job, partition, what): number for what, number in known.items()}
        numbers[position_key(job, partition)] = position

    def decide() -> Change | None:
        record = Provenance(kind="rebuild", job=job).metadata
        return None if logs.known_state().partitions else Change([], numbers, record)

    job_log.swap(decide, "rebuilding")
    return RebuildReport(positions=positions, notes=tuple(notes))


def _go_on_from(logs: ExportLogs, name: str, log: Table, partitions: list[Partition]) -> None:
    """Let a type pass the rows that were replayed into it, and take further ones under the job file as it is."""
    state, parts = log.known_state(partitions), []
    for partition in partitions:
        known = state.of(partition)
        start, end = known.position or 0, known.numbers.get(REPLAYED_END, 0)
        if start < end:
            parts.append(SlicePart(Slice(partition, start, end, start), 0, Counts(), begins=known.position is None))
    log.commit_revised(
        lambda: Proposal(log.job, new_batch_id(), tuple(parts), {flow_key(log.job): logs.settings_of(name)}),
        logs.columns_of(name),
    )


def _quarantine_notes(logs: ExportLogs, job_log: Table, run: int) -> Iterator[str]:
    """Begin the quarantine of a new job log; what types listed for the former counts as appended."""
    marks = {key: end for name, log in logs.type_logs() for key, end in listed_marks(log, name).items()}
    discard(logs.job, Listings(job_log.quarantine_url, {**marks, replay_key(job_log.job): run}, run), logs.environment)
    folder = f"{logs.places.home}/{QUARANTINE_FOLDER}"
    for former in sorted({"/".join(entry.path.split("/")[:5]) for entry in logs.storage.list(folder)}):
        if not former.endswith(job_log.id):
            yield f"records that were quarantined before are in {former}, and are not replayed"


def _topics(
    logs: ExportLogs, types: Mapping[str, Table], bounds: Mapping[Partition, Bounds]
) -> dict[str, tuple[str, int]]:
    """Of each topic the id that it has, or had last, and how often it was created."""
    latest: dict[str, tuple[int, int, str]] = {}
    incarnations: dict[str, int] = {}
    for log in types.values():
        for record in log.handle.history():
            commit = provenance_of(record)
            places = () if commit is None else [*commit.starts, *commit.slices, *commit.offsets]
            for index, place in enumerate(places):
                named = (int(record["timestamp"]), index, place.topic_id)
                latest[place.topic] = max(latest.get(place.topic, named), named)
        for partition in bounds:
            if log.known_state([partition]).of(partition).position is not None:
                latest[partition.topic] = (_LAST, 0, partition.topic_id)
        for final in map(parse_final_name, [file.path for file in log.active_files()]):
            if final is not None:
                incarnations[final.space] = max(incarnations.get(final.space, 1), final.incarnation)
    return {topic: (last[2], incarnations.get(logs.space.of(topic), 1)) for topic, last in latest.items()}
