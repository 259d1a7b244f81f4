"""The rows of a keyed table depend only on its records: streams cut into random batches give the same rows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name, content_of
from penstock.lake.delta.files import ActiveFile
from penstock.tables.keyed.layout import (
    BUCKET,
    DELETE,
    SEQUENCE,
    SEQUENCES,
    TIEBREAK,
    Layout,
    sequences,
    sequences_type,
)
from penstock.tables.keyed.merging.chunks import ChunkStore, fresh
from penstock.tables.keyed.merging.merge import BucketPlan, MergeFlow, merge_bucket
from penstock.tables.keyed.merging.runs import RunWriter, parts_by_bucket
from tests.support.tries import tries

STREAMS = 15
"""Of each of the four layouts."""
COLUMNS = [("key", pa.int64()), ("seq", pa.int64()), ("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.int64()))]
NAMES = ("a", "b", "c")


@dataclass(frozen=True, slots=True)
class Record:
    topic: str
    partition: int
    generation: int
    offset: int
    key: int
    seq: int
    gone: bool
    values: tuple[Any, ...]

    def order(self, layout: Layout) -> tuple[int, ...]:
        place = (self.generation, self.offset, self.partition)
        return place if layout.sequence is None else (self.seq, *place)


@dataclass(slots=True)
class Bucket:
    """A table of one bucket, without its commits: its files, and those of its tombstones."""

    folder: Path
    layout: Layout
    chance: random.Random
    files: dict[str, ActiveFile] = field(default_factory=dict)
    tombstones: list[str] = field(default_factory=list)

    @property
    def store(self) -> ChunkStore:
        schema = pa.schema([*COLUMNS, (SEQUENCE, pa.int64()), (TIEBREAK, pa.int64())])
        if self.layout.merge:
            schema = schema.append(pa.field(SEQUENCES, sequences_type(self.layout, schema)))
        return ChunkStore(str(self.folder / "table"), {}, schema, self.layout, chunk_rows=3)

    def merge(self, batch: Sequence[Record]) -> None:
        """Merge a batch; some processes die after they have written tombstones, and the next takes the same batch."""
        while self.chance.random() < 0.1:
            self._attempt(batch, dies=True)
        self._attempt(batch, dies=False)

    def _attempt(self, batch: Sequence[Record], *, dies: bool) -> None:
        name = partial(fresh, compacted_name, 9)
        flow = MergeFlow(self.store, name, str(self.folder / "tombstones"))
        files: list[StagedFile] = []
        for topic, partition in sorted({(record.topic, record.partition) for record in batch}):
            writer = RunWriter(self.layout, self.store.storage, (topic, partition), name)
            for record in batch:
                if (record.topic, record.partition) == (topic, partition):
                    writer.write(row_of(record))
            files += writer.finish()
        runs = [part for parts in parts_by_bucket(files).values() for part in parts]
        self.chance.shuffle(runs)
        plan = BucketPlan(0, tuple(runs), tuple(self.files.values()), tuple(self.tombstones))
        report = merge_bucket(flow, plan)
        self.tombstones += [file.path for file in report.tombstones]
        if dies:
            return
        for path in report.removed:
            del self.files[path]
        for file in report.files:
            assert content_of(file.path) is not None and file.partition_values == {BUCKET: "0"}
            self.files[file.path] = ActiveFile(file.path, file.size_bytes, 0, ("0",), rows=file.rows)

    def rows(self) -> dict[int, tuple[Any, ...]]:
        rows = [row for path in self.files for row in self.store.read(path).to_pylist()]
        result = {row["key"]: (row["seq"], row[SEQUENCE], *(row[name] for name in NAMES)) for row in rows}
        assert len(result) == len(rows), "a key is there twice"
        return result


def row_of(record: Record) -> pa.RecordBatch:
    values = {"key": record.key, "seq": record.seq, **dict(zip(NAMES, record.values, strict=True))}
    row = pa.RecordBatch.from_pylist([values], schema=pa.schema(COLUMNS))
    order = sequences(pa.array([record.offset]), [(0, record.generation)])
    return row.append_column(SEQUENCE, order).append_column(DELETE, pa.array([record.gone]))


def expected(layout: Layout, records: Iterable[Record]) -> dict[int, tuple[Any, ...]]:
    """The rows of these records, in plain Python."""
    rows: dict[int, tuple[Any, ...]] = {}
    for record in sorted(records, key=lambda record: record.order(layout)):
        before = rows.pop(record.key, (None,) * 5)[2:]
        if not record.gone:
            merged = [
                old if new is None and layout.merge else new for new, old in zip(record.values, before, strict=True)
            ]
            rows[record.key] = (record.seq, record.generation << 48 | record.offset, *merged)
    return rows


def stream(chance: random.Random) -> list[Record]:
    """Records of two partitions, with many ties; a generation begins at some offset of each."""
    records = []
    for partition in range(2):
        begin = chance.randrange(12)
        for offset in range(chance.randrange(1, 12)):
            values = (chance.choice([None, 1, 2]), chance.choice([None, "x", "y"]), chance.choice([None, [], [offset]]))
            key, seq, gone = chance.randrange(3), chance.randrange(4), chance.random() < 0.2
            records.append(Record("topic", partition, int(offset >= begin), offset, key, seq, gone, values))
    return records


def cut(chance: random.Random, records: Sequence[Record]) -> Iterator[list[Record]]:
    """Batches of consecutive records of each partition; some come late, out of quarantine, and some twice."""
    late = [record for record in records if chance.random() < 0.1]
    waiting = [[record for record in records if record.partition == number and record not in late] for number in (0, 1)]
    while any(waiting):
        counts = [chance.randrange(4) for _ in waiting]
        batch = [record for queue, count in zip(waiting, counts, strict=True) for record in queue[:count]]
        waiting = [queue[count:] for queue, count in zip(waiting, counts, strict=True)]
        if batch:
            yield batch
    if late:
        yield late
    if chance.random() < 0.5:
        yield chance.sample(records, chance.randrange(1, len(records) + 1))


@pytest.mark.parametrize("merge", [False, True], ids=["replace", "merge"])
@pytest.mark.parametrize("sequence", [None, "seq"], ids=["log", "sequence"])
def test_streams_cut_at_random_places_give_the_rows_of_their_records(
    tmp_path: Path, merge: bool, sequence: str | None
) -> None:
    layout = Layout(("key",), (), sequence, merge=merge, buckets=1)
    for seed in range(tries(STREAMS)):
        chance = random.Random(seed)
        records = stream(chance)
        bucket = Bucket(tmp_path / str(seed), layout, chance)
        for batch in cut(chance, records):
            bucket.merge(batch)
        assert bucket.rows() == expected(layout, records), seed


@pytest.mark.parametrize("merge", [False, True], ids=["replace", "merge"])
@pytest.mark.parametrize("delete", [False, True], ids=["update", "delete"])
def test_equal_offsets_of_two_topics_have_one_order_in_any_batches(tmp_path: Path, merge: bool, delete: bool) -> None:
    layout = Layout(("key",), (), "seq", merge=merge, buckets=1)
    one = Record("one", 0, 0, 5, 1, 7, False, (1, "x", None))
    two = Record("two", 0, 0, 5, 1, 7, delete, (2, None, [2]))
    outcomes = []
    for number, batches in enumerate(([[one, two]], [[two, one]], [[one], [two]], [[two], [one]])):
        bucket = Bucket(tmp_path / str(number), layout, random.Random(0))
        for batch in batches:
            bucket.merge(batch)
        outcomes.append(bucket.rows())
    assert all(rows == outcomes[0] for rows in outcomes)
