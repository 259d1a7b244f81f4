"""Every damage to a table is found or not proven, never ok; a healthy table is proven."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.transaction import AddAction

from penstock.watch.verify import Verdict, Violation, ViolationKind
from tests.unit.verify.lakes import KINDS, NEW, Damage, Kind, Lake, made, rewritten

Row = dict[str, Any]
Rows = list[Row]


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Lake]:
    return {kind: made(tmp_path_factory.mktemp("lake"), kind) for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Case:
    """A damage, and at which depth it must be found."""

    name: str
    damage: Damage
    only_values: bool = False
    """It leaves all offsets and numbers as they were."""
    needs_places: bool = False
    surely: bool = False
    """Found in every kind of table, not only called not proven."""
    foreign: bool = False
    """Leaves files of another writer, whose rows do not show the incarnation of their topic."""


def in_file(change: Callable[[Rows], Rows]) -> Damage:
    return lambda lake: rewritten(lake.files()[0], change)


def delete_file(lake: Lake) -> None:
    lake.files()[0].unlink()


def truncate_file(lake: Lake) -> None:
    path = lake.files()[0]
    path.write_bytes(path.read_bytes()[:-20])


def flip_a_byte(lake: Lake) -> None:
    """In the data pages, which no footer describes."""
    path = lake.files()[0]
    body = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(0).column(0)
    body[column.data_page_offset + column.total_compressed_size - 3] ^= 0x55
    path.write_bytes(bytes(body))


def swap_rows(rows: Rows) -> Rows:
    """One lost, one doubled: as many as before."""
    return [rows[0], *rows[0:1], *rows[2:]]


def alter_value(rows: Rows) -> Rows:
    return [{**rows[0], "id": rows[0]["id"] + 1000}, *rows[1:]]


def exchange_values(rows: Rows) -> Rows:
    """The values of two rows change places: every sum of a column stays."""
    one, other, *others = rows
    if "offset" not in one:
        return [{"id": one["id"] + 1}, {"id": other["id"] - 1}, *others]
    return [{**one, "id": other["id"]}, {**other, "id": one["id"]}, *others]


def swap_a_file(lake: Lake) -> None:
    """A file is replaced by a copy of another one's rows, as far as they go."""
    path = lake.files()[0]
    rewritten(path, lambda rows: [{**row, "id": 5} for row in rows])


def add_a_copy(lake: Lake) -> None:
    """A foreign commit adds a copy of a file under another name."""
    path = lake.files()[-1]
    copy = path.with_name("part-0000-copy.parquet")
    shutil.copy(path, copy)
    _add(lake.table, copy)


def remove_a_file(lake: Lake) -> None:
    """A foreign commit removes a file from the table."""
    table = DeltaTable(str(lake.table))
    only = "partition = 1" if lake.kind.places else "id >= 6"
    table.delete(f"{only}")


def remove_and_double(lake: Lake) -> None:
    """A foreign writer removes a row and appends another one twice: as many rows as before."""
    DeltaTable(str(lake.table)).delete("id = 7")
    lost = 2 if lake.kind.recreated else 1
    rows = [{"id": 3, "partition": 0, "offset": 3}] * (2 * lost)
    names = ["id", "partition", "offset"] if lake.kind.places else ["id"]
    kinds = {"id": pa.int64(), "partition": pa.int32(), "offset": pa.int64()}
    schema = pa.schema([(name, kinds[name]) for name in names])
    write_deltalake(str(lake.table), pa.Table.from_pylist(rows, schema), mode="append")


def transaction(name: str, change: Callable[[int], int]) -> Damage:
    """A foreign commit moves an app transaction of partition 0."""

    def damage(lake: Lake) -> None:
        table = DeltaTable(str(lake.table))
        key = f"orders/{NEW}/0{name}"
        moved = Transaction(key, change(table.transaction_version(key) or 0), None)
        table.create_write_transaction(
            [], "append", table.schema(), commit_properties=CommitProperties(app_transactions=[moved])
        )

    return damage


def bad_rows(change: Callable[[Rows], Rows]) -> Damage:
    return lambda lake: rewritten(lake.quarantine_files()[0], change)


def delete_quarantine_file(lake: Lake) -> None:
    lake.quarantine_files()[0].unlink()


def delete_quarantine_row(lake: Lake) -> None:
    DeltaTable(str(lake.quarantine)).delete('"offset" = 2')


def double_quarantine_file(lake: Lake) -> None:
    path = lake.quarantine_files()[0]
    copy = path.with_name("part-0000-copy.parquet")
    shutil.copy(path, copy)
    _add(lake.quarantine, copy)


def swap_quarantine_rows(lake: Lake) -> None:
    """One record of the quarantine replaces another."""
    rewritten(lake.quarantine_files()[0], lambda rows: [{**row, "offset": 3} for row in rows])


def put_quarantined_into_table(lake: Lake) -> None:
    """A good row is replaced by one of a record that is in quarantine."""
    rewritten(lake.files()[0], lambda rows: [{**rows[0], "id": 2, "offset": 2, "partition": 0}, *rows[1:]])


def lose_the_quarantine(lake: Lake) -> None:
    shutil.rmtree(lake.quarantine)


def add_a_file_of_another_table(lake: Lake) -> None:
    """Its rows have columns of the same names, and places that this table never read."""
    path = lake.table / "part-0000-elsewhere.parquet"
    shutil.copy(lake.files()[-1], path)
    rewritten(path, lambda rows: [{**row, "offset": 500 + at, "partition": 9} for at, row in enumerate(rows)])
    _add(lake.table, path)


def rewrite_with_other_values(lake: Lake) -> None:
    """Another writer replaces files: as many rows, at the same places."""
    DeltaTable(str(lake.table)).update({"id": "id + 1000"}, predicate="id = 4")


def _add(table: Path, file: Path) -> None:
    handle = DeltaTable(str(table))
    rows = pq.read_metadata(file).num_rows
    action = AddAction(file.name, file.stat().st_size, {}, 0, True, f'{{"numRecords": {rows}}}')
    handle.create_write_transaction([action], "append", handle.schema())


CASES = [
    Case("a data file deleted", delete_file, surely=True),
    Case("a data file truncated", truncate_file, surely=True),
    Case("a byte of a data page flipped", flip_a_byte, only_values=True),
    Case("a file with a row fewer", in_file(lambda rows: rows[1:]), surely=True),
    Case("a file with a row doubled", in_file(lambda rows: [*rows, rows[-1]]), surely=True),
    Case("a file with one row lost and one doubled", in_file(swap_rows)),
    Case("a value altered", in_file(alter_value), only_values=True),
    Case("values of two rows exchanged", in_file(exchange_values), only_values=True),
    Case("all values of a file replaced", swap_a_file, only_values=True),
    Case("an offset nulled", in_file(lambda rows: [{**rows[0], "offset": None}, *rows[1:]]), needs_places=True),
    Case("a partition nulled", in_file(lambda rows: [{**rows[0], "partition": None}, *rows[1:]]), needs_places=True),
    Case(
        "a row moved to another partition",
        in_file(lambda rows: [{**rows[0], "partition": 1 - rows[0]["partition"]}, *rows[1:]]),
        needs_places=True,
    ),
    Case(
        "an offset altered",
        in_file(lambda rows: [{**rows[0], "offset": 99}, *rows[1:]]),
        needs_places=True,
        surely=True,
    ),
    Case("a copy of a file added by a foreign commit", add_a_copy, surely=True),
    Case("rows removed by a foreign commit", remove_a_file, surely=True),
    Case("rows removed and others doubled by a foreign writer", remove_and_double, foreign=True),
    Case("a file of another table added", add_a_file_of_another_table, surely=True),
    Case("files rewritten with other values", rewrite_with_other_values, only_values=True, foreign=True),
    Case("the quarantine lost", lose_the_quarantine, surely=True),
    Case("the position moved forward", transaction("", lambda at: at + 1), surely=True),
    Case("the position moved back", transaction("", lambda at: at - 1), surely=True),
    Case("a total altered", transaction("#written", lambda at: at + 1), surely=True),
    Case("the quarantined total altered", transaction("#quarantined", lambda at: at - 1), surely=True),
    Case("a quarantine file deleted", delete_quarantine_file, surely=True),
    Case("a quarantined row deleted", delete_quarantine_row, surely=True),
    Case("a quarantine file doubled", double_quarantine_file, surely=True),
    Case("a quarantined row replaced by another", swap_quarantine_rows),
    Case("a quarantined value altered", bad_rows(lambda rows: [{**rows[0], "value": b"BAD"}]), only_values=True),
    Case("a record in both table and quarantine", put_quarantined_into_table, needs_places=True),
]


def crossed(kinds: list[Kind]) -> list[object]:
    """Each damage with every pair of properties, and so in half of the kinds; the next damage in the other half."""
    return [
        pytest.param(case, kind, id=f"{case.name}: {kind}")
        for number, case in enumerate(CASES)
        for kind in kinds
        if (kind.places or not case.needs_places) and (kind.places + kind.compacted + kind.recreated + number) % 2
    ]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_healthy_table_is_proved_as_far_as_it_can_be(lakes: dict[Kind, Lake], kind: Kind) -> None:
    """Without places only rows are counted; two incarnations in one compacted file cannot be distinguished."""
    plain, values = lakes[kind].verify(), lakes[kind].verify(values=True)
    not_proven = [item.name for item in plain.checks if item.verdict is not Verdict.PROVEN]
    assert not_proven == ([] if kind.places and not kind.mixed else ["offsets"])
    assert Verdict.VIOLATED not in (plain.verdict, values.verdict)
    not_proven = [check.name for check in values.checks if check.verdict is not Verdict.PROVEN]
    if not kind.places or kind.mixed:
        assert not_proven == ["offsets", "values"]
    else:
        # The records of the earlier incarnation were deleted with their topic.
        assert not_proven == (["values"] if kind.recreated else [])
    for check in (*plain.checks, *values.checks):
        assert (check.verdict is Verdict.NOT_PROVEN) == bool(check.unproven)


@pytest.mark.parametrize(("case", "kind"), crossed(KINDS))
def test_damage_is_found_or_not_proven(lakes: dict[Kind, Lake], case: Case, kind: Kind, tmp_path: Path) -> None:
    lake = lakes[kind].copied(tmp_path)
    case.damage(lake)
    if not case.only_values:
        shallow = lake.verify(deep=False).verdict
        assert shallow is not Verdict.PROVEN
        if shallow is Verdict.VIOLATED:
            return
    deepest = lake.verify(values=True).verdict
    assert deepest is not Verdict.PROVEN
    if case.surely or (kind.places and not (kind.recreated and (kind.compacted or case.foreign))):
        assert deepest is Verdict.VIOLATED


@pytest.mark.parametrize(("case", "kind"), crossed([kind for kind in KINDS if kind.places]))
def test_damage_is_found_or_not_proven_where_records_expired(
    lakes: dict[Kind, Lake], case: Case, kind: Kind, tmp_path: Path
) -> None:
    lake = lakes[kind].copied(tmp_path)
    lake = replace(lake, log=replace(lake.log, firsts=dict.fromkeys(lake.partitions, 8)))
    case.damage(lake)
    assert lake.verify(values=True).verdict is not Verdict.PROVEN
    if not case.only_values:
        assert lake.verify().verdict is not Verdict.PROVEN


@pytest.mark.parametrize("first", [0, 8], ids=["whole log", "trimmed log"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.places and not kind.recreated], ids=str)
def test_a_single_missing_row_is_named_by_its_offset_and_not_by_its_slice(
    lakes: dict[Kind, Lake], kind: Kind, first: int, tmp_path: Path
) -> None:
    lake = lakes[kind].copied(tmp_path)
    lake = replace(lake, log=replace(lake.log, firsts=dict.fromkeys(lake.partitions, first)))
    DeltaTable(str(lake.table)).delete('"partition" = 0 AND "offset" = 4')
    assert lake.verify().first_violation == Violation("orders", 0, 4, ViolationKind.MISSING)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.places and not kind.recreated], ids=str)
def test_files_merged_by_another_writer_are_still_proven(lakes: dict[Kind, Lake], kind: Kind, tmp_path: Path) -> None:
    lake = lakes[kind].copied(tmp_path)
    DeltaTable(str(lake.table)).update({"id": "id"})
    assert lake.verify(values=True).verdict is Verdict.PROVEN
