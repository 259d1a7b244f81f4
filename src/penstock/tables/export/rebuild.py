"""Restores lost logs: those of plain types from the names and footers of all files, the job log from the logs of types.

Plain types are restored together, and only if their files prove that nothing is missing (RULES E6): every batch is
whole, because the footers of a task count the files that it wrote of each type, and no slice is missing, because
footers name the end of the last slice before theirs that has files of the type. The job log starts over at the lowest
position of its types: types that are ahead skip what they have. It comes last, so an interrupted rebuild is run again.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec
import pyarrow as pa

from penstock.environment import new_batch_id
from penstock.errors import PenstockError
from penstock.flow.columns.fitting import folded, grown
from penstock.flow.write.manifest import Counts, Ranges, StagedFile
from penstock.flow.write.names import SUFFIX
from penstock.job.spec import DAY_FOLDER
from penstock.lake.delta.keys import (
    field_key,
    jobs_with_positions,
    replay_key,
    topic_fingerprint,
    topic_key,
)
from penstock.lake.proposal import Proposal, SlicePart
from penstock.lake.state import Numbers
from penstock.logs.log import Bounds, Partition, Slice
from penstock.quarantine.replay import run_number
from penstock.quarantine.table import Listings, discard, listed_marks
from penstock.tables.export.finishing import Footer, read_footer, visible_files
from penstock.tables.export.logs import FILES_END, STAGED, ExportLogs, type_totals
from penstock.tables.export.names import day_folder, output_owner, parse_final_name, type_and_day
from penstock.tables.export.state import UNKNOWN_TOPIC, day_key, incarnation_key, parse_state, type_key
from penstock.tables.kind import RebuildReport

FOOTERS_AT_ONCE = 16
_QUARANTINE_NOTE = "records that were quarantined before are not replayed: they are in former folders of the quarantine"


def rebuild(logs: ExportLogs, bounds: Mapping[Partition, Bounds]) -> RebuildReport:
    """Restore the missing logs, or report what prevents it; `bounds` are of the topics as they are now."""
    away = f"move {logs.places.home}/_delta_log and {logs.places.types} away to restore all logs"
    if logs.state().partitions:
        return RebuildReport((f"the job log is there: if a log is wrong, {away}",))
    intact = {name for name, log in logs.type_logs().items() if log.job in jobs_with_positions(log.transactions())}
    problems = [f"the log of type {name} cannot be read: {reason}" for name, reason in logs.unreadable.items()]
    files = [entry for entry in visible_files(logs, "") if _is_named(entry.path)] if logs.is_plain else []
    files.sort(key=lambda entry: entry.path)
    with_files = {entry.path.split("/")[0] for entry in files}
    if not logs.is_plain:
        storage = logs.storage
        with_files = {name for name in logs.export.types if any(e.path.endswith(SUFFIX) for e in storage.list(name))}
    if intact:
        restore = away if logs.is_plain else "restore its _delta_log"
        problems += [f"type {name} has lost its log and others have not: {restore}" for name in with_files - intact]
    elif not files or not logs.is_plain:
        problems.append("there are neither positions nor data files of this job")
    restored = _Restored(logs)
    if not intact and not problems:
        with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
            footers = pool.map(lambda entry: _footer(logs, entry.path), files)
            for entry, footer in zip(files, footers, strict=True):
                restored.take(entry.path, entry.size_bytes, footer)
        problems += restored.problems()
    if problems:
        return RebuildReport(tuple(sorted(problems)))
    for name in restored.files:
        restored.create_log(name)
    types = {
        name: {"files": len(of_type), "rows": sum(file.rows for file in of_type)}
        for name, of_type in restored.files.items()
    }
    return replace(_restore_job(logs, bounds, restored.topics()), types=types)


# the logs of plain types


class WrittenFile(
    msgspec.Struct, frozen=True, kw_only=True, rename={"number": "partition", "place": "slice", "start": "from"}
):
    """A file of a slice or of a replay, by its footer; its rows may be in a compacted file by now."""

    v: Literal[1]
    job: str
    topic: str
    topic_id: str
    number: int
    batch: str
    type: str
    day: str
    last: int
    path: str
    rows: int
    place: tuple[int, int] = (0, 0)
    piece: tuple[int, int] = (0, 0)
    pieces: int = 1
    start: int = 0
    after: int | None = None
    types: Mapping[str, int] | None = None
    """How many files of each type its task wrote; None if it was closed before the task ended."""
    run: int = 0
    offsets: Ranges = ()

    @property
    def partition(self) -> Partition:
        return Partition(self.topic, self.topic_id, self.number)


def _is_named(path: str) -> bool:
    """Whether folder and name of a file are those of a plain file of Penstock."""
    named = parse_final_name(path) is not None or output_owner(path) is not None
    return named and type_and_day(path) is not None


def _footer(logs: ExportLogs, path: str) -> Footer | str:
    try:
        return read_footer(logs.storage, path)
    except PenstockError as error:
        return f"its footer cannot be read: {error.detail or error.primary}"


@dataclass(slots=True)
class _Restored:
    """The plain files of a job by type, as logs will name them, and what their footers record."""

    logs: ExportLogs
    files: dict[str, list[StagedFile]] = field(default_factory=lambda: defaultdict(list))
    schemas: dict[str, pa.Schema] = field(default_factory=lambda: defaultdict(lambda: pa.schema([])))
    written: list[WrittenFile] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def take(self, path: str, size_bytes: int, footer: Footer | str) -> None:
        """Take a file, with what its footer records of it or of those that it replaces."""
        if isinstance(footer, str):
            self.faults.append(f"{path}: {footer}")
            return
        final, (name, day) = parse_final_name(path), type_and_day(path) or ("", "")
        spaces = {self.logs.space_of(topic) for topic in self.logs.job.log.topics}
        if final is not None and final.space not in spaces and footer.facts.get("job") != self.logs.job.name:
            # It belongs to another job whose claims were lost too.
            return
        originals = footer.replaced(path, size_bytes)
        try:
            written = [msgspec.convert(original, WrittenFile) for original in originals]
        except msgspec.ValidationError as error:
            self.faults.append(f"{path}: its footer does not name the slice that wrote it: {error}")
            return
        if name not in self.logs.export.types:
            self.faults.append(f"{path}: the job file does not name the type {name}")
        if not all(map(self._agrees, written)) or sum(file.rows for file in written) != footer.rows:
            self.faults.append(f"{path}: its name and its footer disagree")
        self.written += written
        values: dict[str, str | None] = {"day": day, STAGED: path.rsplit("/", 1)[-1]}
        stats = json.dumps({"numRecords": footer.rows})
        self.files[name].append(StagedFile("", 0, path, footer.rows, size_bytes, values, stats))
        self.schemas[name] = grown(self.schemas[name], footer.schema)

    def _agrees(self, file: WrittenFile) -> bool:
        """Whether the name of a file, which may be replaced, is the one that its footer gives it."""
        final = parse_final_name(file.path)
        named = None if final is None else (final.space, final.partition, final.last_offset)
        own = file.job == self.logs.job.name and file.path.startswith(f"{day_folder(file.type, file.day)}/")
        return own and (bool(file.run) or named == (self.logs.space_of(file.topic), file.number, file.last))

    def problems(self) -> list[str]:
        """What is missing or duplicated, in all files."""
        paths = [path for path, count in Counter(file.path for file in self.written).items() if count > 1]
        faults = [*self.faults, *(f"{path}: its rows are also in a compacted file: move one away" for path in paths)]
        for name in self.files:
            for partition, files in self._by_partition(name).items():
                faults += [f"{partition} {problem}" for problem in self._broken(name, files)]
        return faults

    def topics(self) -> dict[str, str]:
        """The newest id of each topic."""
        finals = ((parse_final_name(file.path), file) for file in self.written)
        ordered = sorted((final.incarnation, file.topic, file.topic_id) for final, file in finals if final is not None)
        return {topic: topic_id for _, topic, topic_id in ordered}

    def _by_partition(self, name: str) -> dict[Partition, list[WrittenFile]]:
        """The files of a type in the order of the log."""
        partitions: dict[Partition, list[WrittenFile]] = defaultdict(list)
        for file in sorted(self.written, key=lambda file: (bool(file.run), file.start, file.batch)):
            if file.type == name:
                partitions[file.partition].append(file)
        return partitions

    def _broken(self, name: str, files: Sequence[WrittenFile]) -> Iterator[str]:
        """What is missing or duplicated among the files of a type in a partition, which are in order."""
        batches: dict[str, list[WrittenFile]] = defaultdict(list)
        for file in files:
            if not file.run:
                batches[file.batch].append(file)
        end: int | None = None
        for own in batches.values():
            first = own[0]
            if end is not None and first.start < end:
                yield f"offsets {first.start} to {end - 1}: two batches wrote rows of {name}: {first.path}"
            elif first.after != end:
                last = (first.after or first.start) - 1
                yield f"offsets {end or 0} to {last}: files of {name} are missing before {first.path}"
            end = first.place[1]
            yield from self._broken_batch(name, own)
        for file in files:
            if file.run and (file.after or 0) > (end or 0):
                yield f"offsets {end or 0} to {(file.after or 0) - 1}: files of {name} are missing before {file.path}"

    def _broken_batch(self, name: str, own: Sequence[WrittenFile]) -> Iterator[str]:
        """What is missing of a type in a batch of one partition; files of other types count its own."""
        first, counts = own[0], Counter(file.piece for file in own)
        place = first.batch, first.partition
        of_batch = [file for file in self.written if (file.batch, file.partition) == place]
        of_batch.sort(key=lambda file: file.types is not None)
        for piece, types in sorted({file.piece: file.types for file in of_batch}.items()):
            expected = "an unknown number" if types is None else types.get(name, 0)
            if counts[piece] != expected:
                offsets = f"offsets {piece[0]} to {piece[1] - 1}"
                yield f"{offsets}: {counts[piece]} files of {name} exist, {expected} were written"
        if len({file.piece for file in of_batch}) < first.pieces:
            yield f"offsets {first.place[0]} to {first.place[1] - 1}: a part of the slice left no file: {first.path}"

    def create_log(self, name: str) -> None:
        """Create the log of a type, and enter all its files and positions with one commit."""
        logs, job = self.logs, self.logs.job.name
        computed = {folded(column) for column in logs.job.columns}
        logs.add_columns(name, pa.schema([field for field in self.schemas[name] if folded(field.name) not in computed]))
        log = logs.find_type_log(name)
        assert log is not None
        extra = {day_key(job, str(file.partition_values[DAY_FOLDER])): 0 for file in self.files[name]}
        extra[replay_key(job)] = max(file.run for file in self.written if file.type == name)
        parts = []
        for partition, files in self._by_partition(name).items():
            own, replayed = [file for file in files if not file.run], [file for file in files if file.run]
            start = own[0].start if own else min(file.offsets[0][0] for file in replayed)
            end, rows = max((file.place[1] for file in own), default=start), sum(file.rows for file in own)
            # The position of the type is beyond bad records that were replayed later.
            position = max([end, *(file.offsets[-1][1] for file in replayed)])
            numbers = Numbers(latest={FILES_END: end} if own else {})
            piece = Slice(partition, start, position, start)
            parts.append(SlicePart(piece, 0, Counts(read=rows, written=rows), numbers=numbers, begins=True))
            extra[field_key(job, partition, "replayed")] = sum(file.rows for file in replayed)
        proposal = Proposal(job, new_batch_id(), tuple(parts), extra, files=tuple(self.files[name]))
        log.commit(proposal)


# the job log


def _restore_job(logs: ExportLogs, bounds: Mapping[Partition, Bounds], former_ids: Mapping[str, str]) -> RebuildReport:
    """Create the job log, and enter positions and types with one commit; `former_ids` are of topics as of the files."""
    job, job_log = logs.job.name, logs.create_job_log()
    types = logs.type_logs()
    run = max(map(run_number, types.values()), default=0)
    extra = {type_key(job, name): logs.log_id(name) for name in logs.export.types} | {replay_key(job): run}
    states = [parse_state(log.version, log.transactions(), job).partitions for log in types.values()]
    keys = sorted({key for state in states for key, counted in state.items() if counted.position is not None})
    ids = {part.topic: part.topic_id for part in bounds if any(part.topic_id == topic_id for topic_id, _ in keys)}
    # The next start notices a topic that was recreated meanwhile.
    ids = {**dict.fromkeys((partition.topic for partition in bounds), UNKNOWN_TOPIC), **former_ids, **ids}
    topics = {topic_id: topic for topic, topic_id in ids.items()}
    finals = [parse_final_name(file.path) for log in types.values() for file in log.active_files()]
    for topic, topic_id in ids.items():
        incarnations = [final.incarnation for final in finals if final and final.space == logs.space_of(topic)]
        if incarnations or topic_id != UNKNOWN_TOPIC:
            extra[topic_key(job, topic)] = topic_fingerprint(topic_id)
            extra[incarnation_key(job, topic)] = max(incarnations, default=1)
    positions, notes, parts = {}, [_QUARANTINE_NOTE], []
    for topic_id, number in keys:
        partition = Partition(topics.get(topic_id, UNKNOWN_TOPIC), topic_id, number)
        origins = [logs.counted(name, partition).origin for name in types]
        # Where no log of a type has a position, it is read from where the job began.
        begun = min(origin for origin in origins if origin is not None)
        begun = 0 if logs.job.log.start == "earliest" else begun
        ends = {name: logs.counted(name, partition).position or begun for name in logs.export.types}
        position = max(ends.values())
        if partition.topic != UNKNOWN_TOPIC:
            first = bounds[partition].first if partition in bounds else 0
            position = positions[str(partition)] = min(max(min(ends.values()), first), position)
        notes += [
            f"{partition}: offsets {end} to {position - 1} cannot be read again, type {name} may lack some"
            for name, end in ends.items()
            if end < position
        ]
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
    return RebuildReport(positions=positions, notes=tuple(notes))
