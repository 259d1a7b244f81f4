"""Every damage to an export is found or called not proven, never ok."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from penstock.lake.delta.keys import field_key, position_key
from penstock.logs.log import Partition
from penstock.tables.export.state import Lag, lag_numbers, type_key
from penstock.watch.verify import Verdict
from tests.support.export_root import MONDAY, ONE, WEDNESDAY, ZERO
from tests.unit.tables.export.damaged_root import (
    DELTA,
    KINDS,
    PLAIN,
    Kind,
    Lake,
    Rows,
    add_file,
    made,
    rewritten,
    set_numbers,
)

Damage = Callable[[Lake], None]


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Lake]:
    return {kind: made(tmp_path_factory.mktemp("lake"), kind) for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Case:
    """A damage, and the depth of `verify` that must find it."""

    name: str
    damage: Damage
    only_values: bool = False
    """It leaves all offsets and numbers as they were."""
    kinds: tuple[Kind, ...] = tuple(KINDS)
    unplaced: bool = False
    """Leaves a row without its place, which may be the one that is missing: it is called not proven."""


# rows


def in_file(change: Callable[[Rows], Rows]) -> Damage:
    """The log is made to name the file as it is then, so that neither its size nor its rows differ."""
    return lambda lake: change_file(lake, "order", lake.files("order")[0], change)


def change_file(lake: Lake, name: str, file: Path, change: Callable[[Rows], Rows]) -> None:
    rewritten(file, change)
    add_file(lake.log_of(name), lake.path if lake.kind.is_plain else lake.path / name, file, file)


def swap_rows(rows: Rows) -> Rows:
    """One row lost, one duplicated: as many as before."""
    return [rows[0], rows[0], *rows[2:]]


def exchange_values(rows: Rows) -> Rows:
    one, other, *others = rows
    return [{**one, "id": other["id"]}, {**other, "id": one["id"]}, *others]


def moved_to_other_type(lake: Lake) -> None:
    """A foreign writer moves the rows of a file from one type to another: all offsets are there once."""
    source, target = lake.files("click")[-1], lake.files("order")[-1]
    rows = pq.ParquetFile(source).read().to_pylist()
    change_file(lake, "click", source, lambda _: [])
    change_file(lake, "order", target, lambda there: [*there, *rows])


def exchange_types(lake: Lake) -> None:
    """An order is among the clicks and a click among the orders."""
    one, other = lake.files("order")[0], lake.files("click")[0]
    order, click = (pq.ParquetFile(path).read().to_pylist()[0] for path in (one, other))
    change_file(lake, "order", one, lambda rows: [click, *rows[1:]])
    change_file(lake, "click", other, lambda rows: [order, *rows[1:]])


def exchange_days(lake: Lake) -> None:
    """A row of Monday is among those of Wednesday and the other way round."""
    day_of = {f"day={MONDAY}": [], f"day={WEDNESDAY}": []}  # type: dict[str, list[Path]]
    for path in lake.files("order"):
        day_of[path.parent.name].append(path)
    one, other = (paths[0] for paths in day_of.values())
    early, late = (pq.ParquetFile(path).read().to_pylist()[0] for path in (one, other))
    change_file(lake, "order", one, lambda rows: [late, *rows[1:]])
    change_file(lake, "order", other, lambda rows: [early, *rows[1:]])


# files


def rewrite_file(lake: Lake) -> None:
    rewritten(lake.files()[0], lambda rows: rows[1:])


def delete_file(lake: Lake) -> None:
    lake.files()[-1].unlink()


def truncate_file(lake: Lake) -> None:
    path = lake.files()[0]
    path.write_bytes(path.read_bytes()[:-20])


def flip_a_byte(lake: Lake) -> None:
    """In the data pages, where no footer shows it."""
    path = lake.files()[0]
    body = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(0).column(0)
    body[column.data_page_offset + column.total_compressed_size - 3] ^= 0x55
    path.write_bytes(bytes(body))


def copied_file(lake: Lake, name: str) -> Path:
    file = lake.files()[0]
    copy = file.with_name(name)
    shutil.copy(file, copy)
    return copy


def add_a_copy(lake: Lake) -> None:
    """A foreign commit adds a copy of a file."""
    copy = copied_file(lake, "part-0000-copy.parquet")
    add_file(lake.log_of("order"), lake.path if lake.kind.is_plain else lake.path / "order", copy, lake.files()[0])


def leave_a_copy(name: str) -> Damage:
    """A copy that no commit names: readers of plain files see its rows."""
    return lambda lake: (copied_file(lake, name), None)[1]


def move_to_other_day(lake: Lake) -> None:
    file = lake.files()[0]
    other = file.parent.with_name("day=2026-03-09")
    other.mkdir()
    shutil.move(file, other / file.name)


def remove_rows(lake: Lake) -> None:
    """Another writer removes rows from a type's log."""
    log = DeltaTable(str(lake.log_of("order")))
    log.delete(f"day = '{MONDAY}'")


def remove_a_row(lake: Lake) -> None:
    DeltaTable(str(lake.log_of("order"))).delete("kafka_partition = 1 and kafka_offset = 2")


# logs


def number(name: str, key: str, change: Callable[[int], int], partition: Partition = ZERO) -> Damage:
    """A foreign commit alters a number of a type's log, or of the job log (empty name)."""
    full = field_key("shop", partition, key) if key else position_key("shop", partition)
    return lambda lake: set_numbers(lake.log_of(name), **{full: change})


def more(by: int) -> Callable[[int], int]:
    return lambda before: before + by


def lag(of: Lag) -> Damage:
    """A lag of clicks that the job did not enter."""
    numbers = lag_numbers("shop", ZERO, {"click": of})

    def damage(lake: Lake) -> None:
        set_numbers(lake.log_of(), **{key: lambda _, to=to: to for key, to in numbers.items()})

    return damage


def delete_log(lake: Lake) -> None:
    shutil.rmtree(lake.log_of("click") / "_delta_log")


def replace_log(lake: Lake) -> None:
    """A new log of the same type with the same rows, without what the job kept in it."""
    old = DeltaTable(str(lake.log_of("click")))
    schema, columns = old.schema(), old.metadata().partition_columns
    delete_log(lake)
    DeltaTable.create(str(lake.log_of("click")), schema, partition_by=columns)


def forget_the_log(lake: Lake) -> None:
    """The job log names another log of the type."""
    set_numbers(lake.log_of(), **{type_key("shop", "click"): more(1)})


# quarantine


def in_quarantine(change: Callable[[Rows], Rows]) -> Damage:
    def damage(lake: Lake) -> None:
        file = lake.quarantine_files()[0]
        rewritten(file, change)
        add_file(lake.quarantine, lake.quarantine, file, file)

    return damage


def delete_quarantine_file(lake: Lake) -> None:
    lake.quarantine_files()[0].unlink()


def delete_quarantine_row(lake: Lake) -> None:
    DeltaTable(str(lake.quarantine)).delete('"offset" = 10')


def double_quarantine_file(lake: Lake) -> None:
    path = lake.quarantine_files()[0]
    copy = path.with_name("part-0000-copy.parquet")
    shutil.copy(path, copy)
    add_file(lake.quarantine, lake.quarantine, copy, path)


def lose_the_quarantine(lake: Lake) -> None:
    shutil.rmtree(lake.quarantine)


def put_quarantined_into_type(lake: Lake) -> None:
    in_file(lambda rows: [{**rows[0], "kafka_offset": 10, "kafka_partition": 0}, *rows[1:]])(lake)


AS_WRITTEN = (PLAIN, DELTA)
BOTH_PLAIN = tuple(kind for kind in KINDS if kind.is_plain)

CASES = [
    Case("a row missing", in_file(lambda rows: rows[1:])),
    Case("a row doubled", in_file(lambda rows: [*rows, rows[-1]])),
    Case("one row lost and one doubled", in_file(swap_rows)),
    Case("a foreign row", in_file(lambda rows: [*rows, {**rows[0], "kafka_offset": 500}])),
    Case("a row of another partition", in_file(lambda rows: [{**rows[0], "kafka_partition": 7}, *rows[1:]])),
    Case("a row of another topic", in_file(lambda rows: [{**rows[0], "kafka_topic": "mall"}, *rows[1:]])),
    Case("an offset beyond the position", in_file(lambda rows: [{**rows[0], "kafka_offset": 99}, *rows[1:]])),
    Case("an offset nulled", in_file(lambda rows: [{**rows[0], "kafka_offset": None}, *rows[1:]]), unplaced=True),
    Case("a partition nulled", in_file(lambda rows: [{**rows[0], "kafka_partition": None}, *rows[1:]]), unplaced=True),
    Case("a value altered", in_file(lambda rows: [*rows[:-1], {**rows[-1], "id": 1000}]), only_values=True),
    Case("values of two rows exchanged", in_file(exchange_values), only_values=True),
    Case("rows of a file in another type", moved_to_other_type),
    Case("rows of two types exchanged", exchange_types, only_values=True),
    Case("rows of two days exchanged", exchange_days, only_values=True),
    Case("a file rewritten without a row", rewrite_file),
    Case("a file deleted", delete_file),
    Case("a file truncated", truncate_file),
    Case("a byte of a data page flipped", flip_a_byte, only_values=True),
    Case("a copy of a file added by a foreign commit", add_a_copy),
    Case("a copy left under a name of a slice", leave_a_copy("shop.0.5.parquet"), kinds=BOTH_PLAIN),
    Case("a copy left under a name of a compaction", leave_a_copy("compacted~shop.1.2.parquet"), kinds=BOTH_PLAIN),
    Case("a copy left under any name", leave_a_copy("backup.parquet"), kinds=BOTH_PLAIN),
    Case("a file moved to another day", move_to_other_day),
    Case("rows removed from a type's log", remove_rows),
    Case("a row removed from a type's table", remove_a_row, kinds=tuple(kind for kind in KINDS if not kind.is_plain)),
    Case("the job's position moved forward", number("", "", more(1))),
    Case("the job's position moved back", number("", "", more(-1))),
    Case("a type's position moved forward", number("click", "", more(1))),
    Case("a type's position moved far beyond the job's", number("click", "", more(1000))),
    Case("a type's position moved back", number("click", "", more(-1))),
    *(
        Case(f"the job's {total} altered", number("", total, more(1)))
        for total in (
            "read",
            "filtered",
            "quarantined",
            "holes",
            "gap",
            "deferred",
            "vanished",
            "replayed",
        )
    ),
    *(
        Case(f"a type's {total} altered", number("click", total, more(1), ONE))
        for total in ("read", "written", "filtered", "quarantined", "holes", "gap", "replayed")
    ),
    Case("a lag of deferred records invented", lag(Lag(3, deferred=4))),
    Case("a type's log deleted", delete_log),
    Case("a type's log replaced", replace_log),
    Case("a type's log that is not the job's", forget_the_log),
    Case("a quarantined row missing", in_quarantine(lambda rows: [])),
    Case("a quarantined row doubled", in_quarantine(lambda rows: [*rows, rows[0]])),
    Case("a quarantined row replaced by another", in_quarantine(lambda rows: [{**rows[0], "offset": 3}])),
    Case("a quarantined value altered", in_quarantine(lambda rows: [{**rows[0], "value": b"BAD"}]), only_values=True),
    Case("a quarantine file deleted", delete_quarantine_file),
    Case("a quarantined row deleted by another writer", delete_quarantine_row),
    Case("a quarantine file doubled", double_quarantine_file),
    Case("the quarantine lost", lose_the_quarantine),
    Case("a record in both a type and quarantine", put_quarantined_into_type),
]


def crossed(turn: int) -> list[object]:
    """Each damage in both formats, one of them compacted; with 0 and 1 it meets every kind once."""
    return [
        pytest.param(case, kind, id=f"{case.name}: {kind}")
        for number, case in enumerate(CASES)
        for kind in case.kinds
        if kind.compacted == (kind.is_plain == bool((number + turn) % 2))
    ]


def expected_verdict(case: Case) -> Verdict:
    return Verdict.NOT_PROVEN if case.unplaced else Verdict.VIOLATED


@pytest.mark.parametrize(("case", "kind"), crossed(0))
def test_damage_is_found(lakes: dict[Kind, Lake], case: Case, kind: Kind, tmp_path: Path) -> None:
    lake = lakes[kind].copied(tmp_path)
    case.damage(lake)
    report = lake.verify(values=True) if case.only_values else lake.verify(deep=False)
    assert report.verdict is expected_verdict(case)


@pytest.mark.parametrize(("case", "kind"), crossed(1))
def test_damage_is_found_or_not_proven_where_records_expired(
    lakes: dict[Kind, Lake], case: Case, kind: Kind, tmp_path: Path
) -> None:
    lake = lakes[kind].copied(tmp_path, trimmed=True)
    case.damage(lake)
    assert lake.verify(values=True).verdict is not Verdict.PROVEN
    if not case.only_values:
        assert lake.verify().verdict is expected_verdict(case)
