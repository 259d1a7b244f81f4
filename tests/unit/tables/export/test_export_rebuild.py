"""A lost ledger is made again from names and footers, or the ambiguity is named and nothing is written (RULES L6)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import UserError
from penstock.job.spec import StartAt
from penstock.lake.delta.keys import position_key
from penstock.logs.log import Bounds, Partition
from penstock.tables.export.catch_up import CatchUpTerms, catch_up
from penstock.tables.export.compact import compact
from penstock.tables.export.ledger.entry import EntryKind
from penstock.tables.export.ledger.state import Cause
from penstock.tables.export.rebuild.rebuild import RebuildReport, rebuild
from penstock.tables.export.vacuum import vacuum
from penstock.tables.quarantine.table import Listed, keys_behind
from tests.export_root import (
    COLUMNS,
    MONDAY,
    ONE,
    TUESDAY,
    WEDNESDAY,
    ZERO,
    ExportRoot,
    filled,
    footer_of,
    job_file,
    rows_in,
)
from tests.unit.tables.export.test_export_vacuum import quarantine_of, stage_bad

LOG = {ZERO: Bounds(0, 100), ONE: Bounds(0, 100)}


def lose_ledger(root: ExportRoot) -> None:
    """Everything of ours is gone but the data files and the quarantine."""
    for path in root.lake.glob("_penstock/*/*"):
        if path.is_file():
            path.unlink()
        elif path.name != "quarantine":
            shutil.rmtree(path)


def rebuilt(root: ExportRoot, bounds: Mapping[Partition, Bounds] | None = None) -> RebuildReport:
    report = rebuild(root.open(), LOG if bounds is None else bounds)
    root.table = root.open()
    return report


def ambiguities(root: ExportRoot, bounds: Mapping[Partition, Bounds] | None = None) -> set[str]:
    """The reasons why nothing was written."""
    report = rebuilt(root, bounds)
    assert (report.state, report.ok) == (None, False)
    assert root.state.number == 0
    assert not (root.lake / "_penstock" / "shop" / "ledger").exists()
    return {each.reason for each in report.ambiguities}


def rewrite_footer(path: Path, **facts: object) -> None:
    """The same rows under another footer."""
    table = pq.ParquetFile(path).read()
    told = {**footer_of(path), **facts}
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"penstock": json.dumps({k: v for k, v in told.items() if v is not None})})


def test_positions_origins_types_and_rows_come_back(tmp_path: Path) -> None:
    root = filled(tmp_path)
    known = root.state
    lose_ledger(root)
    report = rebuilt(root)
    assert (report.ok, report.files, report.rows) == (True, 14, 68)
    state = root.state
    for partition in (ZERO, ONE):
        here, before = state.of(partition), known.of(partition)
        assert (here.position, here.origin) == (before.position, before.origin) == (34, 0)
        assert (here.totals.written, here.totals.holes) == (34, 0)
        assert here.totals.conserved and here.totals.offsets == 34
    assert state.fingerprints == known.fingerprints
    assert {name: (each.rows, each.files) for name, each in state.types.items()} == {
        name: (each.rows, each.files) for name, each in known.types.items()
    }
    assert [each.kind for each in root.table.ledger.last(2)] == [EntryKind.REBUILD] * 2
    assert root.table.agree_on_types().number == state.number, "the job's own types and columns are known"


def test_the_next_batch_begins_where_the_files_end(tmp_path: Path) -> None:
    root = filled(tmp_path)
    lose_ledger(root)
    rebuilt(root)
    root.write(ZERO, 34, 40, {("order", WEDNESDAY): range(34, 40)})
    assert root.open().state().of(ZERO).position == 40
    assert rows_in(root.lake) == root.expected


def test_what_the_lost_ledger_left_beside_is_not_believed(tmp_path: Path) -> None:
    """`last_complete.json` of the old chain names a number that the new one has yet to reach; so do its markers."""
    root = filled(tmp_path)
    home = root.lake / "_penstock" / "shop"
    assert json.loads((home / "last_complete.json").read_bytes())["number"] == root.state.number
    assert list(home.glob("complete/*/*.json"))
    for part in ("ledger", "snapshots"):
        shutil.rmtree(home / part, ignore_errors=True)
    (home / "last_snapshot.json").unlink(missing_ok=True)
    rebuilt(root)
    assert not list(home.glob("complete/*/*.json")), "watermarks are unknown: no day is complete"
    for start in (34, 37):
        root.table = root.open()
        root.write(ZERO, start, start + 3, {("order", WEDNESDAY): range(start, start + 3)})
        assert rows_in(root.lake) == root.expected
    vacuum(root.open())
    assert rows_in(root.lake) == root.expected


def test_a_type_without_rows_at_the_end_is_read_again_from_where_its_files_end(tmp_path: Path) -> None:
    """Nobody can tell whether it was idle or behind; none of its files is beyond, so nothing is doubled."""
    root = filled(tmp_path)
    lose_ledger(root)
    rebuilt(root)
    here = root.state.of(ZERO)
    assert {name: (lane.position, lane.cause) for name, lane in here.lanes.items()} == {"click": (30, Cause.BACKFILL)}
    plan = catch_up(ZERO, here, LOG[ZERO], CatchUpTerms({}, now=0.0))
    assert plan is not None
    assert (plan.piece.start, plan.piece.end, plan.takes) == (30, 34, {"click": 30})
    assert root.state.routings[plan.routing] == root.table.routing.text, "a later job file may route it elsewhere"
    root.catch_up(ZERO, plan.takes, plan.piece.end, {})
    assert root.state.of(ZERO).lanes == {}
    assert root.state.of(ZERO).totals.conserved


def test_what_a_type_that_was_behind_had_left_is_found_again(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    root.write(ZERO, 0, 10, {("order", MONDAY): range(5), ("click", MONDAY): range(5, 10)})
    root.write(ZERO, 10, 20, {("order", MONDAY): range(10, 15)}, left={"click": range(15, 20)})
    lose_ledger(root)
    assert rebuilt(root, {ZERO: Bounds(0, 20)}).ok
    assert root.state.position_of(ZERO, "click") == 10
    assert root.state.position_of(ZERO, "order") == 20
    root.catch_up(ZERO, {"click": 10}, 20, {("click", MONDAY): range(15, 20)})
    assert root.state.global_position(ZERO) == 20
    assert rows_in(root.lake) == root.expected
    assert root.state.of(ZERO).totals.conserved


def test_a_catch_up_restores_the_position_of_its_type(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    root.write(ZERO, 0, 10, {("order", MONDAY): range(5)}, left={"click": range(5, 10)})
    root.write(ZERO, 10, 20, {("order", MONDAY): range(10, 15)}, left={"click": range(15, 20)})
    root.catch_up(ZERO, {"click": 5}, 18, {("click", MONDAY): [*range(5, 10), *range(15, 18)]})
    lose_ledger(root)
    assert rebuilt(root, {ZERO: Bounds(0, 20)}).ok
    assert root.state.position_of(ZERO, "click") == 18
    assert (root.state.types["click"].rows, root.state.types["order"].rows) == (8, 10)
    assert root.state.of(ZERO).totals.conserved


def test_what_the_log_no_longer_has_of_a_type_is_a_warning(tmp_path: Path) -> None:
    root = filled(tmp_path)
    lose_ledger(root)
    report = rebuilt(root, {ZERO: Bounds(32, 100), ONE: Bounds(30, 100)})
    assert len(report.warnings) == 1
    assert report.warnings[0].startswith("shop/0: the log no longer has offsets 30 to 31; if type click")


def test_compacted_files_tell_what_they_replace(tmp_path: Path) -> None:
    root = filled(tmp_path)
    compact(root.table)
    root.write(ZERO, 34, 40, {("order", MONDAY): range(34, 40)})
    compact(root.table, all_days=True)
    known = root.state
    lose_ledger(root)
    report = rebuilt(root)
    assert (report.ok, report.files, report.rows) == (True, 15, 74)
    assert root.state.of(ZERO).position == known.of(ZERO).position == 40
    assert root.state.number > known.number, "numbers in file names never come twice"
    root.write(ZERO, 40, 44, {("order", MONDAY): range(40, 44)})
    compact(root.table, all_days=True)
    assert rows_in(root.lake) == root.expected


def test_entry_numbers_go_on_above_those_that_the_quarantine_knows(tmp_path: Path) -> None:
    """The quarantine takes a listing for appended whose number is not above its own."""
    root = filled(tmp_path)
    quarantine_of(root).append_listed([Listed(position_key(root.job.name, ZERO), 700, stage_bad(root, ZERO, 0, 1))])
    lose_ledger(root)
    rebuilt(root)
    assert root.state.number > 700
    assert keys_behind(quarantine_of(root).table(), {position_key(root.job.name, ZERO): root.state.number})


def test_entry_numbers_go_on_above_those_of_a_partition_that_left_only_bad_records(tmp_path: Path) -> None:
    """It begins anew: a listing of it with a number that the quarantine knows would never be appended."""
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO, ONE)
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)})
    quarantine_of(root).append_listed([Listed(position_key(root.job.name, ONE), 700, stage_bad(root, ONE, 0, 1))])
    lose_ledger(root)
    assert rebuilt(root).ok
    assert keys_behind(quarantine_of(root).table(), {position_key(root.job.name, ONE): root.state.number})


def test_a_slice_of_several_pieces_needs_them_all(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    root.write(ZERO, 0, 30, {("order", MONDAY): range(30)}, pieces=(0, 10, 20))
    lose_ledger(root)
    only = {ZERO: Bounds(0, 30)}
    assert rebuilt(root, only).ok
    lose_ledger(root)
    (root.lake / "order" / f"day={MONDAY}" / "shop.0.19.parquet").unlink()
    assert ambiguities(root, only) == {"a part of the slice left no file"}


def test_a_missing_file_of_a_batch_is_an_ambiguity_with_partition_offsets_and_files(tmp_path: Path) -> None:
    root = filled(tmp_path)
    lose_ledger(root)
    (root.lake / "click" / f"day={MONDAY}" / "shop.1.19.parquet").unlink()
    report = rebuilt(root)
    (ambiguity,) = report.ambiguities
    assert (ambiguity.partition, ambiguity.offsets) == ("shop/1", (10, 20))
    assert ambiguity.files == (f"order/day={MONDAY}/shop.1.15.parquet",)
    assert ambiguity.reason == "its task wrote 1 files of type click, none is there and nothing caught up with it"
    assert root.state.number == 0


def test_a_slice_of_which_every_file_is_gone_is_a_hole(tmp_path: Path) -> None:
    root = filled(tmp_path)
    lose_ledger(root)
    for path in root.lake.glob(f"*/day={MONDAY}/shop.0.1?.parquet"):
        path.unlink()
    report = rebuilt(root)
    assert [(each.reason, each.offsets) for each in report.ambiguities] == [
        ("no file tells of these offsets", (10, 20))
    ]


def test_a_file_closed_early_needs_another_that_counts_it(tmp_path: Path) -> None:
    root = filled(tmp_path)
    lose_ledger(root)
    early = root.lake / "click" / f"day={MONDAY}" / "shop.0.9.parquet"
    rewrite_footer(early, types=None)
    assert rebuilt(root).ok
    lose_ledger(root)
    rewrite_footer(root.lake / "order" / f"day={MONDAY}" / "shop.0.5.parquet", types=None)
    assert ambiguities(root) == {"no file tells how many its task wrote"}


def test_a_type_that_failed_in_a_batch_is_no_ambiguity_and_is_read_again(tmp_path: Path) -> None:
    """Its files were written and counted in the footers of the others, and never landed."""
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    root.write(ZERO, 0, 10, {("order", MONDAY): range(5), ("click", MONDAY): range(5, 10)})
    rows = {("order", MONDAY): range(10, 15), ("click", MONDAY): [16, 19], ("click", TUESDAY): [17]}
    root.write(ZERO, 10, 20, rows, failed=["click"])
    root.write(ZERO, 20, 30, {("order", MONDAY): range(20, 25)}, left={"click": range(25, 30)})
    only = {ZERO: Bounds(0, 30)}
    lose_ledger(root)
    assert rebuilt(root, only).ok
    assert root.state.position_of(ZERO, "click") == 10
    root.catch_up(ZERO, {"click": 10}, 30, {("click", MONDAY): [16, 17, 19, *range(25, 30)]})
    root.write(ZERO, 30, 40, {("click", MONDAY): range(30, 40)})
    lose_ledger(root)
    assert rebuilt(root, {ZERO: Bounds(0, 40)}).ok, "it has caught up, and was written again with the others"
    assert rows_in(root.lake) == root.expected
    lose_ledger(root)
    (root.lake / "click" / f"day={MONDAY}" / "shop.0.29.parquet").unlink()
    lost = "its task wrote 2 files of type click, none is there and nothing caught up with it"
    assert ambiguities(root, {ZERO: Bounds(0, 40)}) == {lost}


def test_a_catch_up_in_two_slices_of_which_one_is_lost_is_an_ambiguity(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    root.write(ZERO, 0, 20, {("order", MONDAY): range(5), ("click", MONDAY): range(5, 20)}, failed=["click"])
    root.catch_up(ZERO, {"click": 5}, 12, {("click", MONDAY): range(5, 12)})
    root.catch_up(ZERO, {"click": 12}, 20, {("click", MONDAY): range(12, 20)})
    root.write(ZERO, 20, 30, {("click", MONDAY): range(20, 30)})
    only = {ZERO: Bounds(0, 30)}
    lose_ledger(root)
    assert rebuilt(root, only).ok
    lose_ledger(root)
    (root.lake / "click" / f"day={MONDAY}" / "shop.0.11.parquet").unlink()
    assert ambiguities(root, only) == {
        "its task wrote 1 files of type click, none is there and nothing caught up with it"
    }


def test_a_type_that_landed_in_a_part_of_a_slice_has_lost_the_rest(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    rows = {("order", MONDAY): [1, 11], ("click", MONDAY): [2, 12]}
    root.write(ZERO, 0, 20, rows, pieces=(0, 10))
    lose_ledger(root)
    (root.lake / "click" / f"day={MONDAY}" / "shop.0.12.parquet").unlink()
    assert ambiguities(root, {ZERO: Bounds(0, 20)}) == {"0 files of type click are there, and its task wrote 1"}


def test_a_compaction_that_was_cut_short_with_the_ledger_is_an_ambiguity(tmp_path: Path) -> None:
    root = filled(tmp_path)
    original = root.lake / "order" / f"day={MONDAY}" / "shop.0.5.parquet"
    data = original.read_bytes()
    compact(root.table)
    lose_ledger(root)
    original.write_bytes(data)
    assert "its rows are there twice, a compaction was cut short" in ambiguities(root)


def test_files_that_were_moved_damaged_or_made_by_others_are_ambiguities(tmp_path: Path) -> None:
    root = filled(tmp_path)
    lose_ledger(root)
    folder = root.lake / "order" / f"day={MONDAY}"
    (root.lake / "order" / f"day={TUESDAY}").mkdir()
    (folder / "shop.0.5.parquet").rename(root.lake / "order" / f"day={TUESDAY}" / "shop.0.5.parquet")
    pq.write_table(pa.table({"id": [1]}), folder / "shop.0.77.parquet")
    (folder / "shop.0.78.parquet").write_bytes(b"torn")
    found = ambiguities(root)
    assert {"its name and its footer disagree", "its footer does not tell which batch wrote it"} <= found
    assert any(each.startswith("its footer cannot be read") for each in found)


def test_rows_that_two_batches_wrote_are_an_ambiguity(tmp_path: Path) -> None:
    root = filled(tmp_path)
    lose_ledger(root)
    folder = root.lake / "click" / f"day={MONDAY}"
    shutil.copy(folder / "shop.0.9.parquet", folder / "shop.0.8.parquet")
    rewrite_footer(
        folder / "shop.0.8.parquet", batch="another", last=8, types={"click": {"files": 1, "first": 6, "last": 8}}
    )
    assert ambiguities(root) == {"two slices overlap", "two batches wrote rows of click here"}


def test_a_ledger_that_is_there_is_never_written_over(tmp_path: Path) -> None:
    root = filled(tmp_path)
    with pytest.raises(UserError, match="has a ledger"):
        rebuild(root.open(), LOG)
    lose_ledger(root)
    rebuilt(root)
    with pytest.raises(UserError, match="has a ledger"):
        rebuild(root.open(), LOG)


def test_a_root_without_files_has_nothing_to_rebuild(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    lose_ledger(root)
    assert ambiguities(root, {}) == {"there are no data files of this job"}


@pytest.mark.parametrize(("start", "ok"), [(StartAt.EARLIEST, True), (StartAt.LATEST, False)])
def test_a_partition_without_files_must_begin_at_the_beginning(tmp_path: Path, start: StartAt, ok: bool) -> None:
    root = ExportRoot(job_file(tmp_path, kafka=f"start: {start}"))
    root.start(ZERO, ONE)
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)})
    lose_ledger(root)
    assert rebuilt(root).ok is ok
    assert root.state.of(ONE).position is None


def test_the_lives_of_a_recreated_topic_keep_their_order(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    again = Partition("shop", "AnotherLife", 0)
    root.start(ZERO)
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)})
    root.start(again)
    root.write(again, 0, 5, {("order", MONDAY): range(5)})
    known = root.state.fingerprints
    lose_ledger(root)
    assert rebuilt(root, {again: Bounds(0, 5)}).ok
    assert root.state.fingerprints == known
    assert root.state.of(ZERO).lanes == {}, "an earlier life cannot be read again"
    root.write(again, 5, 9, {("order", MONDAY): range(5, 9)})
    assert f"order/day={MONDAY}/shop.0~2.8.parquet" in root.files()


def test_files_of_another_job_in_the_same_root_are_not_looked_at(tmp_path: Path) -> None:
    ours = filled(tmp_path, export="cluster: west")
    theirs = filled(tmp_path, name="other", export="cluster: east")
    compact(theirs.table)
    lose_ledger(ours)
    assert rebuilt(ours).files == 14


def test_columns_come_from_the_files_without_those_that_the_job_computes(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    root.columns = pa.schema([*COLUMNS, ("price", pa.int64())])
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)})
    lose_ledger(root)
    rebuilt(root, {ZERO: Bounds(0, 5)})
    decoded = pa.schema([("type", pa.string()), ("at", pa.string()), ("id", pa.int64())])
    assert root.state.schema_of("order") == decoded.append(pa.field("price", pa.int64()))
    assert root.state.schema_of("click") == decoded


def test_a_type_that_began_now_is_not_filled_with_what_was_before(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path, click="start: now"))
    root.start(ZERO)
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)})
    lose_ledger(root)
    report = rebuilt(root, {ZERO: Bounds(0, 5)})
    assert root.state.of(ZERO).lanes == {}
    assert report.warnings == ("shop/0: type click began `now` and left no file: it counts as up to date",)
