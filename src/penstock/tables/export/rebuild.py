"""Restores lost logs: those of plain types from their files, the job log from the logs of types (RULES E6).

The position of a type is the end of its last slice; the job's is the highest of its types. Records between the two are
read again for the type, as in a backfill: the log of a type has all its records below its own position, and none above.
The logs of types come first and the job log last, so a rebuild that was interrupted is run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.flow.columns.fitting import folded
from penstock.flow.write.names import SUFFIX
from penstock.job.spec import StartAt
from penstock.lake.delta.keys import (
    field_key,
    jobs_with_positions,
    position_key,
    replay_key,
    topic_fingerprint,
    topic_key,
)
from penstock.lake.delta.provenance import CommitStart, Provenance, placed, provenance_of
from penstock.lake.delta.table import QUARANTINE_FOLDER, Change, Table
from penstock.logs.log import Bounds, Partition
from penstock.tables.export.days import day_key
from penstock.tables.export.file_proof import Doubt, PlainFiles, prove, read_files
from penstock.tables.export.known_files import own_files
from penstock.tables.export.logs import REPLAYED_END, ExportLogs
from penstock.tables.export.names import parse_final_name, type_and_day
from penstock.tables.export.spec import TypeStart
from penstock.tables.export.state import (
    UNKNOWN_TOPIC,
    Cause,
    Lag,
    backfill_key,
    incarnation_key,
    lag_numbers,
    parse_state,
    type_key,
)
from penstock.tables.export.status.status import type_totals
from penstock.tables.quarantine.replay import run_number
from penstock.tables.quarantine.table import Listings, discard, listed_marks

_LAST = 2**63


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What was restored; with doubts, nothing was."""

    doubts: tuple[Doubt, ...] = ()
    types: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Types whose logs were restored, with files and rows."""
    partitions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of the job log: positions, and from where on types are read again."""
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.doubts

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def lines(self) -> Iterator[str]:
        for name, counts in self.types.items():
            yield f"type {name}: restored from {counts['files']} files with {counts['rows']} rows"
        for partition, facts in self.partitions.items():
            again = [f"; {name} is read again from {start}" for name, start in facts["read_again"].items()]
            yield f"{partition}: position {facts['position']}{''.join(again)}"
        yield from self.notes
        yield from (f"doubt: {doubt}" for doubt in self.doubts)
        if self.doubts:
            yield "nothing was changed"


def rebuild(logs: ExportLogs, bounds: Mapping[Partition, Bounds]) -> RebuildReport:
    """Restore the logs that are missing, or say what prevents it; `bounds` are of the topics as they are now."""
    state, existing = logs.state(), dict(logs.type_logs())
    intact = {name: log for name, log in existing.items() if _has_positions(log)}
    files = _plain_files(logs, intact) if logs.is_plain else PlainFiles()
    doubts = [Doubt(f"the log of type {name} cannot be read: {reason}") for name, reason in logs.unreadable.items()]
    doubts += [*files.doubts, *_beyond(logs, intact, files)]
    numbers: dict[str, dict[Partition, dict[str, int]]] = {}
    for name in logs.export.all_types.keys() - intact.keys():
        if files.files[name]:
            numbers[name], broken = prove(name, files.written)
            doubts += broken
        elif name not in existing and any(entry.path.endswith(SUFFIX) for entry in logs.storage.list(name)):
            doubts.append(Doubt(f"the table of type {name} has lost its log: restore {name}/_delta_log"))
    if state.partitions:
        lost = [name for name, known in state.types.items() if known.log_id not in (0, logs.log_id(name))]
        if not doubts and not lost and not numbers:
            return RebuildReport(notes=("the logs exist and agree: nothing was changed",))
        reason = "the logs of types are lost or replaced, and the job log is not"
        move = f"move {logs.places.home}/_delta_log away: it is restored too"
        doubts += [Doubt(f"{reason}: {move}", tuple(sorted({*lost, *numbers})))] if lost or numbers else []
    elif not intact and not numbers:
        doubts.append(Doubt("there are neither positions nor data files of this job"))
    if doubts:
        return RebuildReport(tuple(doubts))
    for name in sorted(numbers):
        _restore_type(logs, name, files, numbers[name])
    rows = {name: sum(file.rows for file in files.files[name]) for name in sorted(numbers)}
    types = {name: {"files": len(files.files[name]), "rows": count} for name, count in rows.items()}
    return replace(_restore_job(logs, bounds), types=types)


def _has_positions(log: Table) -> bool:
    return log.job in jobs_with_positions(log.transactions())


def _plain_files(logs: ExportLogs, intact: Mapping[str, Table]) -> PlainFiles:
    """The files that no log names; all, if some are of a type without a log: other types tell of its batches."""
    entries = sorted(own_files(logs, ""), key=lambda entry: entry.path)
    named = {file.path for log in intact.values() for file in log.active_files()}
    unnamed = [entry for entry in entries if entry.path not in named]
    types = {place[0] for entry in unnamed if (place := type_and_day(entry.path)) is not None}
    return read_files(logs, unnamed if types <= intact.keys() else entries)


def _beyond(logs: ExportLogs, intact: Mapping[str, Table], files: PlainFiles) -> Iterator[Doubt]:
    for file in files.written:
        if file.type in intact and (logs.position(file.type, file.partition) or 0) < file.place[1]:
            place = logs.type_place(file.type).path
            yield Doubt(f"the log of its type is older: move {place} and the job log away", (file.path,))


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
    """Create the job log, and enter positions, types and what is to be read again with one commit."""
    job, job_log = logs.job.name, logs.create_job_log()
    types = dict(logs.type_logs())
    run = max(map(run_number, types.values()), default=0)
    numbers = {type_key(job, name): logs.log_id(name) for name in logs.export.all_types} | {replay_key(job): run}
    topics, current = _topics(logs, types, bounds), {}
    for topic, (topic_id, incarnation) in topics.items():
        current[topic_id] = topic
        numbers |= {topic_key(job, topic): topic_fingerprint(topic_id), incarnation_key(job, topic): incarnation}
    own = {name: parse_state(log.version, log.transactions(), job).partitions for name, log in types.items()}
    report: dict[str, Mapping[str, Any]] = {}
    notes = list(_quarantine_notes(logs, job_log, run))
    for key in sorted({key for known in own.values() for key, here in known.items() if here.position is not None}):
        partition = Partition(current.get(key[0], UNKNOWN_TOPIC), *key)
        known = {name: parts[key] for name, parts in own.items() if key in parts}
        position = max(here.position or 0 for here in known.values())
        totals = {"origin": position, "backfilled": type_totals(logs, partition).accounted}
        numbers |= {field_key(job, partition, what): number for what, number in totals.items()}
        numbers[position_key(job, partition)] = position
        # Where no log of a type says how far it was, it is read from where the job began.
        begun = min(here.origin for here in known.values() if here.origin is not None)
        begun = 0 if logs.job.log.start is StartAt.EARLIEST else begun
        again: dict[str, int] = {}
        for name, spec in logs.export.all_types.items() if key[0] in current else ():
            replayed = types[name].transaction(field_key(job, partition, REPLAYED_END)) if name in types else None
            start = max((known[name].position if name in known else None) or 0, replayed or 0) or None
            if start is None and spec.start is TypeStart.NOW:
                notes.append(f"{partition}: type {name} began `now` and left no file: it counts as up to date")
            elif (start or begun) < position:
                again[name] = start = start or begun
                lag = Lag(start, Cause.BACKFILL, position, since_ms=int(logs.environment.now() * 1000))
                numbers |= lag_numbers(job, partition, name, lag) | {backfill_key(job, partition, name): position}
        if key[0] in current:
            report[str(partition)] = {"position": position, "read_again": again}

    def decide() -> Change | None:
        record = Provenance(kind="rebuild", job=job).metadata
        return None if logs.known_state().partitions else Change([], numbers, record)

    job_log.swap(decide, "rebuilding")
    return RebuildReport(partitions=report, notes=tuple(notes))


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
