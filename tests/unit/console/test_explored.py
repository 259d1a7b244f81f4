"""Records of a log next to what became of them, over real tables and a log in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.console.explored import RECORDS_SHOWN, Explored, explore
from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition
from tests.support.memory_log import MemoryLog, MemoryRecord
from tests.support.small_table import Load, SmallTable, small_job, without_offsets

PLACE = Partition("orders", "topic-id", 0)
LOG = MemoryLog(
    {PLACE: {offset: MemoryRecord(b'{"id": %d}' % offset, b"k", at=1000.0 + offset) for offset in range(100)}}
)
POSITION = 60


def table_of(folder: Path) -> JobSpec:
    """Read up to 60: even offsets are rows, 7 is in quarantine, the others were filtered."""
    job = small_job("127.0.0.1:1", "orders", folder)
    table = SmallTable(job)
    table.start(PLACE)
    good = [offset for offset in range(POSITION) if offset % 2 == 0]
    table.commit(PLACE, Load(0, 30, good[:15], (7,), 14, contents={7: (b"x", "not JSON")}))
    table.commit(PLACE, Load(30, POSITION, good[15:], filtered=15))
    return job


def explored(job: JobSpec, around: str, *, single: bool = False, log: MemoryLog = LOG) -> Explored:
    return explore(job, "orders/0", around, {"orders/0": POSITION}, single=single, open_log=lambda job: log)


def fates(result: Explored) -> dict[int, str]:
    return {record.offset: record.fate for record in result.records}


def test_each_record_is_next_to_its_row_or_to_the_reason_why_it_has_none(tmp_path: Path) -> None:
    result = explored(table_of(tmp_path), "10")
    assert [record.offset for record in result.records] == list(range(5, 5 + RECORDS_SHOWN))
    assert fates(result) | {5: "no row", 6: "in the table", 7: "in quarantine"} == fates(result)
    [in_table, bad] = result.records[1:3]
    [row] = in_table.rows
    assert row.cells == (("id", "6"), ("partition", "0"), ("offset", "6"))
    assert (bad.error, bad.rows) == ("not JSON", ())
    assert in_table.value is not None
    assert in_table.value.text == '{\n  "id": 6\n}'


def test_records_beyond_the_position_are_not_read_yet(tmp_path: Path) -> None:
    job = table_of(tmp_path)
    assert {*fates(explored(job, "latest")).values()} == {"not read yet"}
    around_position = explored(job, "60")
    assert fates(around_position) | {58: "in the table", 60: "not read yet"} == fates(around_position)


@pytest.mark.parametrize(("around", "first"), [("1970-01-01T00:17:10Z", 25), ("0", 0), ("earliest", 0), ("9999", 95)])
def test_a_place_is_an_offset_or_a_time(tmp_path: Path, around: str, first: int) -> None:
    assert explored(table_of(tmp_path), around).records[0].offset == first


def test_rows_without_a_place_are_explained(tmp_path: Path) -> None:
    job = without_offsets(small_job("127.0.0.1:1", "orders", tmp_path))
    table = SmallTable(job)
    table.start(PLACE)
    table.commit(PLACE, Load(0, POSITION, range(POSITION)))
    result = explored(job, "10")
    assert {*fates(result).values()} == {"not shown"}
    assert "place: none" in result.note


def test_large_records_are_cut_and_fewer_are_read(tmp_path: Path) -> None:
    large = MemoryLog({PLACE: {offset: MemoryRecord(b"x" * 10_000_000) for offset in range(30)}})
    result = explored(table_of(tmp_path), "0", log=large)
    assert len(result.records) < RECORDS_SHOWN
    assert "fewer are shown" in result.note
    record = result.records[0]
    assert record.value is not None
    assert (record.value.cut, record.size_bytes, len(record.value.text)) == (True, 10_000_000, 1024)


def test_retention_that_took_the_records_is_a_note(tmp_path: Path) -> None:
    class Shrinking(MemoryLog):
        def records(self, *place: object) -> object:  # type: ignore[override]
            self.firsts[PLACE] = 90
            return super().records(*place)  # type: ignore[arg-type]

    result = explored(table_of(tmp_path), "10", log=Shrinking(LOG.values))
    assert result.records == ()
    assert result.note


def test_one_record_is_shown_in_full(tmp_path: Path) -> None:
    [record] = explored(table_of(tmp_path), "8", single=True).records
    assert (record.offset, record.fate) == (8, "in the table")


def test_another_partition_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    job = table_of(tmp_path)
    with pytest.raises(UserError, match="no partition"):
        explore(job, "../etc/0", "", {}, open_log=lambda job: LOG)
    with pytest.raises(UserError, match="invalid start"):
        explored(job, "yesterday'; drop")
