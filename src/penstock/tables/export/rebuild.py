"""Restores lost logs: those of plain types from the names and footers of all files, the job log from the logs of types.

Plain types are restored together, and only if their files prove that nothing is missing (RULES E6): every batch is
whole, because the footers of a task count the files that it wrote of each type, and no slice is missing, because
footers name the end of the last slice before theirs that has files of the type. The job log starts over at the lowest
position of its types: types that are ahead skip what they have. It comes last, so an interrupted rebuild is run again.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce

import pyarrow as pa

from penstock.environment import new_batch_id
from penstock.errors import PenstockError
from penstock.flow.columns.fitting import folded, grown
from penstock.flow.route.footers import WrittenFile, read_footer
from penstock.flow.write.manifest import Counts, StagedFile
from penstock.flow.write.names import SUFFIX
from penstock.job.spec import DAY_FOLDER
from penstock.lake.delta.keys import field_key, replay_key, topic_fingerprint, topic_key
from penstock.lake.delta.table import DeltaLog
from penstock.lake.proposal import Proposal, SlicePart
from penstock.lake.state import Numbers
from penstock.logs.log import Partition, Slice
from penstock.quarantine.replay import run_number
from penstock.quarantine.table import Listings, discard, listed_marks
from penstock.storage import Entry
from penstock.tables.export.finishing import visible_files
from penstock.tables.export.logs import FILES_END, STAGED, ExportLogs, type_totals
from penstock.tables.export.names import output_owner, parse_final_name, type_and_day
from penstock.tables.export.state import PartitionId, day_key, parse_state, type_key
from penstock.tables.kind import RebuildReport

FOOTERS_AT_ONCE = 16
_QUARANTINE_NOTE = "records that were quarantined before are not replayed: they are in former folders of the quarantine"


def rebuild(logs: ExportLogs, partitions: Collection[Partition]) -> RebuildReport:
    """Restore the missing logs, or report what prevents it; `partitions` are those of the topics as they are now."""
    away = f"move {logs.home}/_delta_log and {logs.home}/types away to restore all logs"
    if logs.state().partitions:
        return RebuildReport((f"the job log is there: if a log is wrong, {away}",))
    intact = {name: started for name, log in logs.type_logs().items() if (started := _started(log))}
    problems = [f"the log of type {name} cannot be read: {reason}" for name, reason in logs.unreadable.items()]
    entries = _data_files(logs)
    files: list[PlainFile] = []
    if intact:
        restore = away if logs.is_plain else "restore its _delta_log"
        lost = {entry.path.split("/")[0] for entry in entries} - intact.keys()
        problems += [f"type {name} has lost its log and others have not: {restore}" for name in lost]
    elif not entries or not logs.is_plain:
        problems.append("there are neither positions nor data files of this job")
    elif not problems:
        with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
            results = list(pool.map(partial(_read_file, logs), entries))
        files = [file for file in results if isinstance(file, PlainFile)]
        problems += [fault for fault in results if isinstance(fault, str)]
    written = [original for file in files for original in file.written]
    problems += _problems(written)
    topic_ids = {topic_id for started in intact.values() for topic_id, _ in started}
    topic_ids |= {file.topic_id for file in written}
    if others := topic_ids - {partition.topic_id for partition in partitions}:
        problems.append(
            f"topics with the ids {', '.join(sorted(others))} were deleted or recreated, or the job file does not name "
            "them: name them, or start a new job with another `table.export.cluster`"
        )
    if problems:
        return RebuildReport(tuple(sorted(problems)))
    for name in sorted({file.type for file in files}):
        _create_log(logs, name, [file for file in files if file.type == name])
    return _restore_job(logs, partitions)


def _started(log: DeltaLog) -> set[PartitionId]:
    """The partitions of which the log of a type has positions."""
    return {key for key, _ in parse_state(log.version, log.transactions(), log.job).started()}


def _data_files(logs: ExportLogs) -> list[Entry]:
    """The data files of all types, in order; of plain ones also those of types that the job file does not name."""
    if not logs.is_plain:
        entries = (entry for name in logs.export.types for entry in logs.storage.list(name))
        return [entry for entry in entries if entry.path.endswith(SUFFIX)]
    files = (entry for entry in visible_files(logs, "") if type_and_day(entry.path) is not None)
    named = (entry for entry in files if parse_final_name(entry.path) or output_owner(entry.path))
    return sorted(named, key=lambda entry: entry.path)


# plain files


@dataclass(frozen=True, slots=True)
class PlainFile:
    """A visible file as the log of its type names it."""

    type: str
    committed: StagedFile
    schema: pa.Schema
    written: Sequence[WrittenFile]
    """The files of slices and replays whose rows it holds: itself, or those that it replaces."""


def _read_file(logs: ExportLogs, entry: Entry) -> PlainFile | str | None:
    """A file by its name and footer, or what is wrong with it; None for one of another job whose claims were lost."""
    path, (name, day) = entry.path, type_and_day(entry.path) or ("", "")
    try:
        footer, metadata = read_footer(logs.storage, path)
    except PenstockError as error:
        return f"{path}: its footer does not name the slice that wrote it: {error}"
    if footer.job != logs.job.name:
        return None
    rows = metadata.num_rows
    agree = all(_is_named(logs, file) and (file.type, file.day) == (name, day) for file in footer.written)
    if name not in logs.export.types or not agree or sum(file.rows for file in footer.written) != rows:
        return f"{path}: its name, its footer, and the types and the cluster of the job file disagree"
    values: dict[str, str | None] = {DAY_FOLDER: day, STAGED: path.rsplit("/", 1)[-1]}
    committed = StagedFile("", 0, path, rows, entry.size_bytes, values, json.dumps({"numRecords": rows}))
    return PlainFile(name, committed, metadata.schema.to_arrow_schema(), footer.written)


def _is_named(logs: ExportLogs, file: WrittenFile) -> bool:
    """Whether a file, which may be replaced by now, has the name that its footer gives it."""
    name = (logs.space_of(file.topic), file.number, file.last)
    return bool(file.run) or parse_final_name(file.path) == name


def _problems(written: Sequence[WrittenFile]) -> Iterator[str]:
    """What is missing or duplicated: the slices of each type follow one another, and every batch is whole."""
    paths = Counter(file.path for file in written)
    last: dict[tuple[Partition, str], tuple[int, str]] = {}
    batches: dict[tuple[Partition, str], list[WrittenFile]] = defaultdict(list)
    for file in sorted(written, key=lambda file: (bool(file.run), file.start, file.batch)):
        end, batch = last.get((file.partition, file.type), (0, ""))
        # Replays are last: they may follow any slice.
        follows = file.after <= end if file.run else file.batch == batch or file.after == end <= file.start
        if not follows or paths[file.path] > 1:
            yield _problem(file)
        if not file.run:
            last[file.partition, file.type] = file.end, file.batch
            batches[file.partition, file.batch].append(file)
    for files in batches.values():
        yield from _problems_of_batch(files)


def _problem(file: WrittenFile) -> str:
    place = f"{file.partition} offsets {file.after} to {file.end - 1}"
    return f"{place}: rows of {file.type} are missing or duplicated near {file.path}"


def _problems_of_batch(files: Sequence[WrittenFile]) -> Iterator[str]:
    """What is missing or duplicated of a batch in one partition: its files count each other."""
    counts = Counter((file.task, file.type) for file in files)
    expected = {file.task: file.types for file in sorted(files, key=lambda file: file.types is not None)}
    # A type without any file failed, or did not take part.
    of_type = {file.type: file for file in files}
    for name, file in of_type.items():
        if any(types is None or types.get(name, 0) != counts[task, name] for task, types in expected.items()):
            yield _problem(file)
    first = files[0]
    if len(expected) < first.tasks:
        place = f"{first.partition} offsets {first.start} to {first.end - 1}"
        yield f"{place}: a part of the slice left no file: {first.path}"


def _create_log(logs: ExportLogs, name: str, files: Sequence[PlainFile]) -> None:
    """Create the log of a plain type, and enter all its files and positions with one commit."""
    job, computed = logs.job.name, {folded(column) for column in logs.job.columns}
    schema = reduce(grown, (file.schema for file in files))
    logs.add_columns(
        name, pa.schema([(field.name, field.type) for field in schema if folded(field.name) not in computed])
    )
    log = logs.find_type_log(name)
    assert log is not None
    written = [original for file in files for original in file.written]
    parts = []
    for partition in sorted({file.partition for file in written}):
        of_partition = [file for file in written if file.partition == partition]
        # The position is beyond bad records that were replayed later.
        start, end = min(file.start for file in of_partition), max(file.end for file in of_partition)
        rows, slice_ends = sum(file.rows for file in of_partition), [file.end for file in of_partition if not file.run]
        numbers = Numbers(latest={FILES_END: max(slice_ends, default=0)})
        counts = Counts(read=rows, written=rows)
        parts.append(SlicePart(Slice(partition, start, end, start), 0, counts, numbers=numbers, begins=True))
    extra = {day_key(job, file.day): 0 for file in written} | {replay_key(job): max(file.run for file in written)}
    log.commit(Proposal(job, new_batch_id(), tuple(parts), extra, files=tuple(file.committed for file in files)))


# the job log


def _restore_job(logs: ExportLogs, partitions: Collection[Partition]) -> RebuildReport:
    """Create the job log, and enter positions and types with one commit."""
    job, job_log = logs.job.name, logs.create_job_log()
    types = logs.type_logs()
    run = max(map(run_number, types.values()), default=0)
    extra = {type_key(job, name): logs.log_id(name) for name in logs.export.types} | {replay_key(job): run}
    positions, parts = {}, []
    topics = {partition.topic_id: partition.topic for partition in partitions}
    for topic_id, number in sorted(set().union(*map(_started, types.values()))):
        partition = Partition(topics[topic_id], topic_id, number)
        origins = [logs.counted(name, partition).origin for name in types]
        # Where no log of a type has a position, it is read from where the job began.
        begun = min(origin for origin in origins if origin is not None)
        begun = 0 if logs.job.log.start == "earliest" else begun
        position = min(logs.counted(name, partition).position or begun for name in logs.export.types)
        positions[str(partition)] = position
        extra[topic_key(job, partition.topic)] = topic_fingerprint(partition.topic_id)
        totals = type_totals(logs, partition)
        # Former bad records are not in the new quarantine: in the sum over all logs, they count as filtered.
        former = totals.quarantined - totals.replayed
        counts = {"restored": totals.accounted, "quarantined": -former, "filtered": former}
        extra |= {field_key(job, partition, what): number for what, number in counts.items()}
        parts.append(SlicePart(Slice(partition, begun, position, begun), 0, Counts(), begins=True))
    # What types listed for the former quarantine counts as appended to the new one.
    marks = {key: mark for name, log in types.items() for key, mark in listed_marks(log, name).items()}
    discard(logs.job, Listings(job_log.quarantine_url, {**marks, replay_key(job): run}, run), logs.environment)
    job_log.commit(Proposal(job, new_batch_id(), tuple(parts), extra))
    return RebuildReport(positions=positions, notes=(_QUARANTINE_NOTE,))
