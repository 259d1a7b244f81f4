"""What the names and footers of plain files prove of a type whose log was lost (RULES E6).

Every batch must be whole: of each piece of its slice, a file counts the files of each type that its task wrote. And no
slice may be missing: footers name the end of the last slice before theirs that has files of the type.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.columns.fitting import grown
from penstock.flow.write.manifest import Ranges, StagedFile, count_of
from penstock.lake.storage import Entry, NotFoundError
from penstock.logs.log import Partition
from penstock.tables.export.finishing import Footer, read_footer
from penstock.tables.export.logs import FILES_END, STAGED, ExportLogs
from penstock.tables.export.names import day_folder, parse_final_name, type_and_day

FOOTERS_AT_ONCE = 16
Range = tuple[int, int]


class WrittenFile(
    msgspec.Struct, frozen=True, kw_only=True, rename={"number": "partition", "place": "slice", "start": "from"}
):
    """A file of a slice or of a replay, by its footer; its rows may lie in a compacted file by now."""

    v: Literal[1]
    job: str
    topic: str
    topic_id: str
    number: int
    batch: str
    type: str
    day: str
    first: int
    last: int
    path: str
    rows: int
    place: Range = (0, 0)
    piece: Range = (0, 0)
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


@dataclass(slots=True)
class PlainFiles:
    """The plain files of a job by type, as logs name them, and what their footers record."""

    files: dict[str, list[StagedFile]] = field(default_factory=lambda: defaultdict(list))
    written: list[WrittenFile] = field(default_factory=list)
    schemas: dict[str, pa.Schema] = field(default_factory=lambda: defaultdict(lambda: pa.schema([])))
    doubts: list[str] = field(default_factory=list)


def read_files(logs: ExportLogs, entries: Sequence[Entry]) -> PlainFiles:
    """Read the footers of files; those of other jobs and programs are left out."""
    read, spaces = PlainFiles(), {logs.space.of(topic) for topic in logs.job.log.topics}

    def footer_of(entry: Entry) -> Footer | str:
        try:
            return read_footer(logs.storage, entry.path)
        except (InvariantError, NotFoundError) as error:
            return f"its footer cannot be read: {error.detail or error.primary}"

    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        footers = list(pool.map(footer_of, entries))
    for entry, footer in zip(entries, footers, strict=True):
        final, facts = parse_final_name(entry.path), {} if isinstance(footer, str) else footer.facts
        if final is None or final.space in spaces or facts.get("job") == logs.job.name:
            reasons = [footer] if isinstance(footer, str) else _take(logs, read, entry, footer)
            read.doubts += [f"{entry.path}: {reason}" for reason in reasons if reason]
    for path, count in Counter(file.path for file in read.written).items():
        if count > 1:
            read.doubts.append(f"{path}: its rows are also in a compacted file: move one of the two away")
    return read


def _take(logs: ExportLogs, read: PlainFiles, entry: Entry, footer: Footer) -> list[str]:
    """Take what a footer records of its file, or of those that it replaces; the reasons not to believe it."""
    name, day = type_and_day(entry.path) or ("", "")
    originals = footer.replaced(entry.path, entry.size_bytes)
    reasons = [_take_original(logs, read, original) for original in originals]
    if sum(original["rows"] for original in originals) != footer.rows:
        reasons.append("it has not as many rows as the files that it replaces")
    if name not in logs.export.all_types:
        reasons.append(f"the job file does not name the type {name}")
    values: dict[str, str | None] = {"day": day, STAGED: entry.path.rsplit("/", 1)[-1]}
    stats = json.dumps({"numRecords": footer.rows})
    read.files[name].append(StagedFile("", 0, entry.path, footer.rows, entry.size_bytes, values, stats))
    read.schemas[name] = grown(read.schemas[name], footer.schema)
    return reasons


def _take_original(logs: ExportLogs, read: PlainFiles, facts: Mapping[str, Any]) -> str:
    try:
        file = msgspec.convert(facts, WrittenFile)
    except msgspec.ValidationError as error:
        return f"its footer does not say which slice wrote it: {error}"
    final, space = parse_final_name(file.path), logs.space.of(file.topic)
    if final is not None and final.space != space:
        return f"its name does not begin with {space}: was table.export.cluster changed?"
    if file.run:
        agree = count_of(file.offsets) == file.rows
    else:
        named = None if final is None else (final.partition, final.last_offset)
        agree = named == (file.number, file.last) and file.start <= file.first <= file.last < file.place[1]
    if not agree or file.job != logs.job.name or file.path.rpartition("/")[0] != day_folder(file.type, file.day):
        return "its name and its footer disagree"
    read.written.append(file)
    return ""


def prove(name: str, written: Sequence[WrittenFile]) -> tuple[dict[Partition, dict[str, int]], list[str]]:
    """The numbers of a type in each partition, if there are no doubts; files of other types count its own."""
    numbers: dict[Partition, dict[str, int]] = {}
    doubts: list[str] = []
    for partition in sorted({file.partition for file in written if file.type == name}):
        slices = [file for file in written if file.partition == partition and not file.run]
        replayed = [file for file in written if file.partition == partition and file.run and file.type == name]
        own = sorted((file for file in slices if file.type == name), key=lambda file: (file.start, file.batch))
        doubts += [f"{partition} {doubt}" for doubt in _broken(name, own, slices)]
        origin = own[0].start if own else min((file.first for file in replayed), default=0)
        end = max((file.place[1] for file in own), default=origin)
        doubts += [
            f"{partition} {_missing(file, end, file.after)}" for file in replayed if file.after and file.after > end
        ]
        # The type was beyond bad records that were replayed later.
        position = max([end, *(file.offsets[-1][1] for file in replayed)])
        rows = sum(file.rows for file in own)
        known = {"origin": origin, "read": rows, "written": rows, "holes": position - origin - rows}
        known |= {"position": position, "replayed": sum(file.rows for file in replayed)}
        numbers[partition] = {**known, FILES_END: end} if own else known
    return numbers, doubts


def _broken(name: str, own: Sequence[WrittenFile], slices: Sequence[WrittenFile]) -> Iterator[str]:
    """What is missing or too much among the files of a type in a partition, which are in order."""
    batches: dict[str, list[WrittenFile]] = defaultdict(list)
    for file in own:
        batches[file.batch].append(file)
    end: int | None = None
    for batch, files in batches.items():
        first = files[0]
        if end is not None and first.start < end:
            yield f"{_offsets(first.start, end)}: two batches wrote rows of {name}: {first.path}"
        elif first.after != end:
            yield _missing(first, end or 0, first.after or first.start)
        end = first.place[1]
        pieces = {file.piece: file.types for file in slices if file.batch == batch}
        pieces |= {file.piece: file.types for file in slices if file.batch == batch and file.types is not None}
        counts = Counter(file.piece for file in files)
        for piece, types in sorted(pieces.items()):
            expected = "an unknown number" if types is None else types.get(name, 0)
            if counts[piece] != expected:
                yield f"{_offsets(*piece)}: {counts[piece]} files of {name} exist, {expected} were written"
        if len(pieces) < first.pieces:
            yield f"{_offsets(*first.place)}: a part of the slice left no file: {first.path}"


def _missing(file: WrittenFile, start: int, end: int) -> str:
    return f"{_offsets(start, end)}: files of {file.type} are missing before {file.path}"


def _offsets(start: int, end: int) -> str:
    return f"offsets {start} to {end - 1}"
