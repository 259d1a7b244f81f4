"""`verify` finds every damage to a keyed table, with and without loads, a trimmed log, compaction and a sequence.

Some damages forge a commit: names, statistics and numbers agree, and only the records of the log reveal it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name
from penstock.lake.delta.entry import Action
from penstock.lake.delta.vectors import bitmap_of, vectors_file
from penstock.tables.keyed.files import chunk_store, files_number
from penstock.tables.keyed.layout import buckets_of, key_frame
from penstock.tables.kind import CompactRequest, Loading, SaveMode
from penstock.tables.registry import kind_of
from penstock.watch.verify import Verdict
from tests.scenarios.local_spark import local_session
from tests.support.keyed_tables import ONE, ZERO, Keyed, row
from tests.support.quarantine_url import quarantine_of

Damage = Callable[[Keyed], object]
Rows = list[dict[str, Any]]
TRIMMED_TO = 20
NEWEST, DELETED, OLDER = 3, 4, 1
"""Numbers of keys: updated at the end of the log, deleted there, and in its first records only."""


@dataclass(frozen=True, slots=True)
class Kind:
    sequence: bool
    loaded: bool
    trimmed: bool
    compacted: bool

    def __str__(self) -> str:
        names = [name for name in ("sequence", "loaded", "trimmed", "compacted") if getattr(self, name)]
        return "-".join(names) or "plain"


KINDS = [Kind(*item) for item in product([False, True], repeat=4) if sum(item) % 2 == 0]
"""Any three of the four properties in every combination."""
FEW = [kind for kind in KINDS if kind.sequence == kind.loaded]
"""With and without each of the four properties, alone with its neighbour and with all."""


def made(folder: Path, kind: Kind) -> Keyed:
    """Rows of two partitions in two buckets, some updated or deleted, and a bad record; files of each batch remain."""
    keyed = "row_keys: [number], delete: gone, buckets: 2, " + ("sequence: seq, " if kind.sequence else "")
    table = Keyed(folder, keyed)
    table.put(*(row(number, number, seq=10) for number in range(12)), b"no json")
    table.put(*(row(number, number, seq=10) for number in range(12, 24)), to=ONE)
    table.run()
    if kind.loaded:
        rows = [row(number, number, seq=5) for number in (OLDER, *range(100, 106))]
        pl.DataFrame(rows).write_parquet(folder / "loaded.parquet")
        loading = kind_of(table.job)
        assert isinstance(loading, Loading)
        paths = [str(folder / "loaded.parquet")]
        loading.load(table.job, paths, SaveMode.APPEND, local_session(), Environment())
    table.put(*(row(number, number, seq=10) for number in range(30, 40)))
    table.run()
    # The offsets from here on are beyond those that are trimmed.
    table.put(row(NEWEST, 33, seq=20), row(DELETED, None, gone=True, seq=20), row(40, 40, seq=20))
    table.run()
    table.put(row(41, 41, seq=20), row(42, 42, seq=20))
    table.run()
    if kind.compacted:
        compact(table)
    if kind.trimmed:
        table.log.expire(ZERO, TRIMMED_TO)
        table.log.expire(ONE, 5)
    return table


def compact(table: Keyed, environment: Environment | None = None) -> None:
    kind_of(table.job).compact(table.job, CompactRequest(), environment or Environment(), None)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Keyed]:
    return {kind: made(tmp_path_factory.mktemp("healthy"), kind) for kind in KINDS}


@pytest.fixture
def table(request: pytest.FixtureRequest, healthy: dict[Kind, Keyed], tmp_path: Path) -> Keyed:
    """A copy for each test; the log is only read."""
    result = healthy[request.param]
    shutil.copytree(result.folder, tmp_path, dirs_exist_ok=True)
    return replace(result, folder=tmp_path)


# files changed in place


def file_of(table: Keyed, number: int, path: str | None = None) -> Path:
    """The file that holds a key."""
    for file in DeltaTable(path or table.path).file_uris():
        if number in pq.ParquetFile(file).read(["key0" if path else "number"])[0].to_pylist():
            return Path(file)
    raise AssertionError(f"no file has {number}")


def altered(column: str, by: int) -> Damage:
    """A value of a row is another one; the size of the file is made to fit."""

    def damage(table: Keyed) -> None:
        path = file_of(table, NEWEST)
        rows = pq.ParquetFile(path).read().to_pylist()
        [newest_row] = [item for item in rows if item["number"] == NEWEST]
        newest_row[column] += by
        written(table, path, rows)

    return damage


def written(table: Keyed, path: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(path)), path)
    amend(table, path.name, size=path.stat().st_size, numRecords=len(rows))


def amend(table: Keyed, name: str, size: int | None = None, **stats: Any) -> None:
    """Change the entry of a file in the log of the table."""
    for entry in sorted(Path(table.path, "_delta_log").glob("*.json")):
        lines = [json.loads(line) for line in entry.read_text().splitlines()]
        for add in (line["add"] for line in lines if "add" in line and name in line["add"]["path"]):
            add["size"] = size or add["size"]
            statistics = json.loads(add["stats"])
            for key, value in stats.items():
                statistics[key] = {**statistics[key], **value} if isinstance(value, dict) else value
            add["stats"] = json.dumps(statistics)
        entry.write_text("\n".join(map(json.dumps, lines)) + "\n")


def without_row(table: Keyed) -> None:
    path = file_of(table, NEWEST)
    rows = [item for item in pq.ParquetFile(path).read().to_pylist() if item["number"] != NEWEST]
    written(table, path, rows or [row(NEWEST + 1000, 1)])


def with_row_twice(table: Keyed) -> None:
    path = file_of(table, NEWEST)
    rows = pq.ParquetFile(path).read().to_pylist()
    written(table, path, [*rows, *(item for item in rows if item["number"] == NEWEST)])


def in_other_bucket(table: Keyed) -> None:
    """A file of another bucket gets the content of a file."""
    path = file_of(table, NEWEST)
    other = next(Path(item) for item in DeltaTable(table.path).file_uris() if Path(item).parent != path.parent)
    written(table, other, pq.ParquetFile(path).read().to_pylist())


def truncated(table: Keyed) -> None:
    path = file_of(table, NEWEST)
    path.write_bytes(path.read_bytes()[:-20])


def statistics(**stats: Any) -> Damage:
    return lambda table: amend(table, file_of(table, NEWEST).name, **stats)


# changes by another writer


def foreign_update(table: Keyed) -> None:
    DeltaTable(table.path).update({"value": "value + 1"}, predicate=f"number = {NEWEST}")


def foreign_delete(table: Keyed) -> None:
    DeltaTable(table.path).delete(f"number = {NEWEST}")


def foreign_insert(table: Keyed) -> None:
    frame = pl.read_delta(table.path)
    write_deltalake(table.path, frame.head(1).with_columns(number=pl.lit(999)).to_arrow(), mode="append")


def foreign_delete_and_insert(table: Keyed) -> None:
    """As many rows as before."""
    foreign_delete(table)
    foreign_insert(table)


def foreign_restore(table: Keyed) -> None:
    """An earlier version with as many files: all of them are ours."""
    there = DeltaTable(table.path)
    there.restore(there.version() - 1)


def foreign_drop(path: str) -> Damage:
    """A commit without our numbers removes a whole file."""
    return lambda table: DeltaTable(f"{table.path}{path}").delete()


# damage to deletion vectors


def vectors_of(table: Keyed) -> list[Path]:
    return sorted({Path(table.path, vector.path) for vector in table.table().vectors().values()})


def cut_vectors(table: Keyed) -> None:
    path = vectors_of(table)[0]
    path.write_bytes(path.read_bytes()[:-1])


def other_vectors(table: Keyed) -> None:
    """The vectors of another version of the same file, intact and of the same length."""
    path = vectors_of(table)[0]
    vectors = [vector for vector in table.table().vectors().values() if path.match(f"*/{vector.path}")]
    data, _ = vectors_file("s.pq", [(bitmap_of(np.arange(vector.rows)), vector.rows) for vector in vectors])
    assert len(data) == len(path.read_bytes()) and data != path.read_bytes()
    path.write_bytes(data)


def no_vectors(table: Keyed) -> None:
    """A commit that equals one of Penstock but for its numbers restores rows."""
    data = table.table()
    file = next(file for file in data.active_files() if file.vector is not None)
    stats = data.logged_files()[file.path].stats
    staged = StagedFile("", 0, file.path, 0, file.size_bytes, {"_bucket": file.values[0]}, stats)
    data.commit_actions([data.remove_action(file), data.add_action(staged)], {}, {})


# damage to the tables alongside it


def without_tombstones(table: Keyed) -> None:
    shutil.rmtree(f"{table.path}_tombstones")


def other_tombstones(table: Keyed) -> None:
    frame = pl.read_delta(f"{table.path}_tombstones")
    without_tombstones(table)
    frame.write_delta(f"{table.path}_tombstones", delta_write_options={"partition_by": "_bucket"})


def rewritten_tombstone(table: Keyed) -> None:
    path = file_of(table, DELETED, f"{table.path}_tombstones")
    rows = pq.ParquetFile(path).read().to_pylist()
    size = path.stat().st_size
    pq.write_table(pa.Table.from_pylist([{**item, "order0": 1} for item in rows], pq.read_schema(path)), path)
    log = Path(f"{table.path}_tombstones", "_delta_log")
    for entry in log.glob("*.json"):
        entry.write_text(entry.read_text().replace(f'"size":{size}', f'"size":{path.stat().st_size}'))


def number_changed(suffix: str) -> Damage:
    def damage(table: Keyed) -> None:
        there = DeltaTable(table.path)
        key = f"keyed/id-1/0{suffix}"
        moved = Transaction(key, (there.transaction_version(key) or 0) + 1, None)
        there.create_write_transaction(
            [], "append", there.schema(), commit_properties=CommitProperties(app_transactions=[moved])
        )

    return damage


DAMAGES: dict[str, Damage] = {
    "value": altered("value", 1),
    "key": altered("number", 1000),
    "sequence": altered("_sequence", 1),
    "tiebreak": altered("_tiebreak", 1),
    "sequence column": altered("seq", 1),
    "row deleted": without_row,
    "row twice": with_row_twice,
    "row in another bucket": in_other_bucket,
    "file missing": lambda table: file_of(table, NEWEST).unlink(),
    "file truncated": truncated,
    "minimum of a key": statistics(minValues={"number": 1000}),
    "maximum of a value": statistics(maxValues={"value": -1}),
    "nulls of a value": statistics(nullCount={"value": 1000}),
    "update by another writer": foreign_update,
    "delete by another writer": foreign_delete,
    "insert by another writer": foreign_insert,
    "delete and insert by another writer": foreign_delete_and_insert,
    "restore by another writer": foreign_restore,
    "all rows deleted by another writer": foreign_drop(""),
    "tombstones missing": without_tombstones,
    "tombstones of another table": other_tombstones,
    "tombstone file missing": lambda table: file_of(table, DELETED, f"{table.path}_tombstones").unlink(),
    "tombstone altered": rewritten_tombstone,
    "tombstones deleted by another writer": foreign_drop("_tombstones"),
    "quarantine row deleted": lambda table: DeltaTable(quarantine_of(table.job)).delete(),
    "position": number_changed(""),
    "count of records": number_changed("#written"),
}


VECTOR_DAMAGES: dict[str, Damage] = {
    "vectors missing": lambda table: vectors_of(table)[0].unlink(),
    "vectors truncated": cut_vectors,
    "vectors of other rows": other_vectors,
    "rows restored by another writer": no_vectors,
}


@pytest.mark.parametrize("table", KINDS, ids=str, indirect=True)
def test_a_healthy_table_is_proven_except_values_without_a_record(table: Keyed, request: Any) -> None:
    kind: Kind = request.node.callspec.params["table"]
    assert table.verified(values=False).ok
    report = table.verified()
    open_questions = [question.what for check in report.checks for question in check.unproven]
    assert report.verdict is not Verdict.VIOLATED
    assert [what.partition(" ")[2] for what in open_questions] == [
        *(["rows of loads"] if kind.loaded else []),
        *(["rows of records that the log no longer has"] if kind.trimmed else []),
    ]


@pytest.mark.parametrize("table", FEW, ids=str, indirect=True)
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_without_comparing_values(table: Keyed, name: str) -> None:
    DAMAGES[name](table)
    assert table.verified(values=False).verdict is Verdict.VIOLATED


@pytest.mark.parametrize("table", [kind for kind in FEW if not kind.compacted], ids=str, indirect=True)
@pytest.mark.parametrize("name", VECTOR_DAMAGES)
def test_damage_to_deletion_vectors_is_found_without_comparing_values(table: Keyed, name: str) -> None:
    VECTOR_DAMAGES[name](table)
    assert table.verified(values=False).verdict is Verdict.VIOLATED


# forged commits: only the log reveals them


def forged(alter: Callable[[Rows], Rows], number: int = NEWEST) -> Damage:
    """Rows are replaced by a commit that looks like one of ours."""

    def damage(table: Keyed) -> None:
        data = table.table()
        store = chunk_store(table.job.table, data)  # type: ignore[arg-type]
        file = file_of(table, number)
        [active] = [item for item in data.active_files() if item.path.endswith(file.name)]
        rows = store.sorted([pa.Table.from_pylist(alter(store.left(active).to_pylist()), store.schema)])
        added = [] if not rows.num_rows else list(store.write(rows, int(active.values[0] or 0), fresh))
        actions: list[Action] = [
            data.remove_action(active),
            *(data.add_action(file) for file in added),
        ]
        data.commit_actions(actions, files_number(data, added, [active]), {})

    return damage


def fresh() -> str:
    return compacted_name(1000, "0" * 32)


def changed(number: int, **values: Any) -> Damage:
    def alter(rows: Rows) -> Rows:
        return [{**item, **values} if item["number"] == number else item for item in rows]

    return forged(alter, number)


def dropped(rows: Rows) -> Rows:
    return [item for item in rows if item["number"] != NEWEST]


def brought_back(table: Keyed) -> None:
    """A deleted row is restored as it was."""
    layout = table.job.table.layout  # type: ignore[attr-defined]
    buckets = buckets_of(layout, key_frame(layout, pa.table({"number": pa.array(range(24))})))
    sibling = next(
        number for number in range(24) if buckets[number] == buckets[DELETED] and number not in (NEWEST, DELETED)
    )
    again = {**row(DELETED, DELETED, seq=10), "_sequence": DELETED}
    tiebreak = pl.read_delta(table.path).filter(number=NEWEST)["_tiebreak"][0]
    forged(lambda rows: [*rows, {**rows[0], **again, "_tiebreak": tiebreak}], sibling)(table)


FORGED: dict[str, Damage] = {
    "value of a retained record": changed(NEWEST, value=34),
    "row of an older record": changed(NEWEST, value=NEWEST, seq=10, _sequence=NEWEST),
    "row of no record": changed(NEWEST, seq=1000, _sequence=21),
    "row beyond the position": changed(NEWEST, seq=1000, _sequence=1000),
    "deleted row brought back": brought_back,
}


@pytest.mark.parametrize("table", KINDS, ids=str, indirect=True)
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_row_that_the_retained_log_contradicts_is_found(table: Keyed, name: str) -> None:
    FORGED[name](table)
    [rows] = [check for check in table.verified(values=False).checks if check.name == "rows"]
    assert rows.ok, rows
    [records] = [check for check in table.verified().checks if check.name == "records"]
    assert records.verdict is Verdict.VIOLATED, records


@pytest.mark.parametrize("table", KINDS, ids=str, indirect=True)
def test_a_forged_delete_is_found_or_not_proven(table: Keyed, request: Any) -> None:
    """A delete that the log lost, or a load, may be newer where a column is the sequence; its tombstone has expired."""
    kind: Kind = request.node.callspec.params["table"]
    forged(dropped)(table)
    may_be = kind.sequence and (kind.trimmed or kind.loaded)
    assert table.verified(values=False).verdict is (Verdict.NOT_PROVEN if may_be else Verdict.VIOLATED)


@pytest.mark.parametrize("table", [KINDS[-1]], ids=str, indirect=True)
@pytest.mark.parametrize("damage", [without_tombstones, other_tombstones])
def test_a_missing_tombstone_table_stops_the_job_until_the_retention_has_passed(table: Keyed, damage: Damage) -> None:
    damage(table)
    with pytest.raises(UserError, match="deleted keys"):
        table.run()
    now = Environment().now
    table.put(row(50, 50, seq=30))
    table.run(Environment(now=lambda: now() + 8 * 86400))
    assert 50 in {item["number"] for item in table.rows()}


# healthy tables that look damaged


def questions(table: Keyed) -> list[str]:
    report = table.verified()
    assert report.verdict is not Verdict.VIOLATED, [check for check in report.checks if not check.ok]
    return [question.what for check in report.checks for question in check.unproven]


def test_a_row_that_came_back_after_its_tombstone_expired_is_not_proven(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], sequence: seq, delete: gone, tombstone_retention: 1h")
    table.put(row(1, None, gone=True, seq=9))
    table.run()
    now = Environment().now
    compact(table, Environment(now=lambda: now() + 7200))
    table.put(row(1, 1, seq=1))
    table.run()
    assert len(table.rows()) == 1
    [question] = questions(table)
    assert "tombstones were removed" in question


def test_a_row_that_a_lost_record_of_another_partition_gave_is_not_a_violation(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number]")
    table.put(row(1, 1))
    table.put(row(8, 8), row(9, 9), row(1, 2), to=ONE)
    table.run()
    table.log.expire(ONE, 3)
    assert table.rows()[0]["value"] == 2
    assert questions(table) == ["3 rows of records that the log no longer has"]


def test_records_of_a_table_with_several_jobs_are_not_proven(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], sequence: seq")
    table.put(row(1, 1, seq=1))
    table.run()
    other = Keyed(tmp_path, table.keyed, name="other")
    other.put(row(1, 2, seq=2), row(2, 2, seq=2))
    other.run()
    for job in (table, other):
        assert questions(job) == ["the records: other jobs write to this table too"]
