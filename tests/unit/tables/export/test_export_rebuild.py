"""Lost logs are restored from names and footers, or problems are reported and nothing is changed (RULES E6)."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.write.report import UNROUTED, Share
from penstock.job.spec import job_of
from penstock.lake.compaction import CompactionLimits
from penstock.logs.log import Partition, Slice
from penstock.tables.export import upkeep as compaction
from penstock.tables.export.export import Export
from penstock.tables.export.finishing import refuse_unnamed_files
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.rebuild import rebuild
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.upkeep import vacuum
from penstock.tables.kind import RebuildReport
from penstock.tables.registry import load_job
from tests.support.export_root import (
    COLUMNS,
    MONDAY,
    ONE,
    TUESDAY,
    WEDNESDAY,
    ZERO,
    ExportRoot,
    Place,
    Rows,
    filled,
    footer_of,
    job_file,
    rows_in,
)
from tests.support.pipes import CrashError
from tests.unit.tables.export.bad_records import in_quarantine, write_with_bad
from tests.unit.tables.export.replayed_root import finish_runs, replay

Lose = Callable[[ExportRoot], None]
AWAY = "move _penstock/shop/_delta_log and _penstock/shop/types away to restore all logs"
JOB_LOG_IS_THERE = f"the job log is there: if a log is wrong, {AWAY}"
DISAGREE = "its name, its footer, and the types and the cluster of the job file disagree"
PRESENT = (ZERO, ONE)


@dataclass(slots=True)
class TrackedExport:
    """An export with all records that its log has had."""

    root: ExportRoot
    records: dict[tuple[Partition, int], tuple[str, str]] = field(default_factory=dict)
    """Type and day by place."""
    ends: dict[Partition, int] = field(default_factory=dict)
    """Of the log, by partition."""

    def write(
        self, partition: Partition, start: int, end: int, rows: Rows, deferred: Rows | None = None, **more: Any
    ) -> None:
        """A slice; `deferred` are records of types that lag."""
        self.expect(partition, rows)
        self.expect(partition, deferred or {})
        self.ends[partition] = max(self.ends.get(partition, 0), end)
        lagging = {name: offsets for (name, _), offsets in (deferred or {}).items()}
        self.root.write(partition, start, end, rows, deferred=lagging, **more)

    def expect(self, partition: Partition, rows: Rows) -> None:
        self.records |= {(partition, offset): key for key, offsets in rows.items() for offset in offsets}

    def catch_up(self, partition: Partition, name: str, end: int | None = None) -> None:
        """Read again what a type lacks."""
        state = self.root.state.of(partition)
        start = state.lags[name].position
        rows: dict[tuple[str, str], list[int]] = {}
        for (place, offset), key in self.records.items():
            if place == partition and key[0] == name and start <= offset < (end or state.position or 0):
                rows.setdefault(key, []).append(offset)
        self.root.catch_up(partition, {name: start}, end or state.position or 0, rows)

    def resume(self, *partitions: Partition) -> None:
        """After a rebuild: the job reads again what some types lack, then ten more records come."""
        self.root.table = reopened(self.root)
        for partition in partitions or (ZERO, ONE):
            start = self.root.state.of(partition).position
            assert start is not None
            if start < self.ends[partition]:
                self.read_again(partition, start)
            start = self.ends[partition]
            rows = {
                ("order", WEDNESDAY): range(start, start + 5),
                ("click", WEDNESDAY): range(start + 5, start + 10),
            }
            self.write(partition, start, start + 10, rows)
        self.check()

    def read_again(self, partition: Partition, start: int) -> None:
        rows: dict[tuple[str, str], list[int]] = {}
        for (place, offset), key in self.records.items():
            if place == partition and offset >= start:
                rows.setdefault(key, []).append(offset)
        self.root.write(partition, start, self.ends[partition], rows)

    def check(self) -> None:
        """Each record is there once."""
        result = rows_in(self.root.lake) if self.root.logs.is_plain else rows_of_tables(self.root)
        assert result == Counter((name, place.number, offset) for (place, offset), (name, _) in self.records.items())


def rows_of_tables(root: ExportRoot) -> Counter[Place]:
    counter: Counter[Place] = Counter()
    for name in root.job.table.types:
        table = DeltaTable(str(root.lake / name)).to_pyarrow_table(columns=["kafka_partition", "kafka_offset"])
        counter.update((name, row["kafka_partition"], row["kafka_offset"]) for row in table.to_pylist())
    return counter


def tracked_export(folder: Path, **texts: str) -> TrackedExport:
    """Two partitions of three slices each, then one of orders alone."""
    export = TrackedExport(filled(folder, None, **texts))
    for partition in (ZERO, ONE):
        for start in (0, 10, 20):
            rows = {("order", MONDAY): range(start, start + 6), ("click", MONDAY): range(start + 6, start + 10)}
            export.expect(partition, rows)
        export.expect(partition, {("order", WEDNESDAY): range(30, 34)})
        export.ends[partition] = 34
    return export


def lose_all(root: ExportRoot) -> None:
    shutil.rmtree(root.lake / "_penstock")


def lose_job_log(root: ExportRoot) -> None:
    shutil.rmtree(root.lake / "_penstock" / root.job.name / "_delta_log")


def lose_types(root: ExportRoot) -> None:
    """The logs of all types, and that of the job."""
    shutil.rmtree(root.lake / "_penstock" / root.job.name / "types")
    lose_job_log(root)


def rebuilt(
    root: ExportRoot, present: Sequence[Partition] = PRESENT, environment: Environment | None = None
) -> RebuildReport:
    return rebuild(ExportLogs(root.job, environment or root.environment), present)


def reopened(root: ExportRoot) -> Export:
    """As a start of the job opens it."""
    refuse_unnamed_files(ExportLogs(root.job, root.environment))
    return root.open()


def contents(lake: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in lake.rglob("*") if path.is_file()}


def problems(root: ExportRoot, present: Sequence[Partition] = PRESENT) -> list[str]:
    """Of a rebuild that changed nothing."""
    before = contents(root.lake)
    report = rebuilt(root, present)
    assert not report.ok and contents(root.lake) == before
    assert list(report.lines())[-1] == "nothing was changed"
    return list(report.problems)


def compact(root: ExportRoot, all_days: bool = True) -> None:
    report = compaction.compact(root.open(), 10**9, all_days=all_days, progress=None, effort=CompactionLimits())
    assert report.files_added and not report.failed


def rewrite_footer(path: Path, **facts: Any) -> None:
    """The same rows under another footer."""
    table = pq.ParquetFile(path).read()
    footer = footer_of(path)
    footer = replace(footer, written=(replace(footer.written[0], **facts),))
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(footer.as_metadata)


def rows_named(root: ExportRoot, name: str) -> int:
    """The rows of the files that the log of a type names."""
    log = root.open().logs.find_type_log(name)
    assert log is not None
    return sum(file.rows or 0 for file in log.active_files())


def data(root: ExportRoot, name: str, day: str, file: str) -> Path:
    return root.lake / name / f"day={day}" / file


# what is restored


@pytest.mark.parametrize("lose", [lose_all, lose_job_log, lose_types])
def test_plain_types_go_on_where_their_files_end(tmp_path: Path, lose: Lose) -> None:
    export = tracked_export(tmp_path)
    lose(export.root)
    with pytest.raises(UserError) as refused:
        reopened(export.root)
    assert "penstock rebuild" in refused.value.hint
    report = rebuilt(export.root)
    assert report.positions == {"shop/0": 30, "shop/1": 30}
    export.check()
    export.resume()
    compact(export.root)
    vacuum(export.root.open())
    export.resume()


def test_delta_tables_go_on_where_their_logs_end(tmp_path: Path) -> None:
    export = tracked_export(tmp_path, export="format: delta")
    lose_all(export.root)
    report = rebuilt(export.root)
    assert report.positions["shop/0"] == 30
    export.resume()


def test_a_delta_table_that_lost_its_log_stops_the_rebuild(tmp_path: Path) -> None:
    export = tracked_export(tmp_path, export="format: delta")
    lose_all(export.root)
    shutil.rmtree(export.root.lake / "click" / "_delta_log")
    assert problems(export.root) == ["type click has lost its log and others have not: restore its _delta_log"]


def test_logs_that_are_there_are_left_alone(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    assert problems(export.root) == [JOB_LOG_IS_THERE]


def test_a_lost_type_is_restored_with_all_others_and_the_job_log(tmp_path: Path) -> None:
    """The files of a type are counted by those of the others."""
    export = tracked_export(tmp_path)
    types = export.root.lake / "_penstock" / "shop" / "types"
    shutil.rmtree(types / "click")
    assert problems(export.root) == [JOB_LOG_IS_THERE]
    lose_job_log(export.root)
    lost = "type click has lost its log and others have not"
    assert problems(export.root) == [f"{lost}: {AWAY}"]
    shutil.rmtree(types)
    assert rebuilt(export.root).ok
    export.resume()


@pytest.mark.parametrize("lose", [lose_all, lose_job_log, lose_types])
def test_a_rebuild_killed_at_any_commit_can_be_repeated(tmp_path: Path, lose: Lose) -> None:
    export = tracked_export(tmp_path)
    lose(export.root)
    shutil.copytree(export.root.lake, tmp_path / "lost")
    for deaths in range(1, 20):
        steps = iter(range(1, 1000))

        def at_step(step: str, last: int = deaths, steps: Iterator[int] = steps) -> None:
            if next(steps) == last:
                raise CrashError(step)

        try:
            assert rebuilt(export.root, environment=Environment(at_step=at_step, sleep=lambda _: None)).ok
            break
        except CrashError:
            with pytest.raises(UserError):
                reopened(export.root)
        report = rebuilt(export.root)
        if not report.ok:
            assert all("away to restore all logs" in problem for problem in report.problems)
            shutil.rmtree(export.root.lake / "_penstock" / "shop" / "types")
            report = rebuilt(export.root)
        assert report.positions["shop/1"] == 30
        shutil.rmtree(export.root.lake)
        shutil.copytree(tmp_path / "lost", export.root.lake)
    assert deaths > (2 if lose is lose_job_log else 4)
    export.resume()


def test_compacted_files_count_as_the_files_that_they_replace(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    compact(export.root)
    export.root.table = export.root.open()
    export.write(ZERO, 34, 40, {("order", MONDAY): range(34, 40)})
    export.root.table = export.root.open()
    compact(export.root)
    lose_all(export.root)
    report = rebuilt(export.root)
    assert report.ok
    export.resume()


def test_late_rows_and_several_days_in_one_slice_are_restored(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    export.write(ZERO, 34, 44, {("click", MONDAY): [34, 36], ("click", TUESDAY): [35], ("order", MONDAY): [40]})
    lose_all(export.root)
    assert rebuilt(export.root).positions["shop/0"] == 44
    export.resume()


def test_waiting_records_of_a_lagging_type_are_read_again(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    export.write(ZERO, 34, 44, {("order", TUESDAY): range(34, 40)}, deferred={("click", TUESDAY): range(40, 44)})
    export.write(ZERO, 44, 54, {("order", TUESDAY): range(44, 50)}, deferred={("click", TUESDAY): range(50, 54)})
    export.catch_up(ZERO, "click", 52)
    lose_all(export.root)
    assert rebuilt(export.root).positions["shop/0"] == 52
    export.resume()


def test_a_type_that_failed_in_a_batch_is_read_again(tmp_path: Path) -> None:
    """Its files were written and counted in the footers of the others, and never landed."""
    export = tracked_export(tmp_path)
    export.write(ZERO, 34, 44, {("order", TUESDAY): [34], ("click", TUESDAY): range(35, 44)}, failed=["click"])
    export.write(ZERO, 44, 50, {("order", TUESDAY): [44]}, deferred={("click", TUESDAY): [45]})
    lose_all(export.root)
    assert rebuilt(export.root).positions["shop/0"] == 30
    export.resume()


def test_slices_with_only_bad_records_do_not_stop_the_rebuild(tmp_path: Path) -> None:
    """Each footer names the last slice of its type that left a file."""
    export = tracked_export(tmp_path)
    export.root.land(Slice(ZERO, 34, 40, 34), {UNROUTED: Share()}, {"order": 34, "click": 34})
    export.write(ZERO, 40, 44, {("click", TUESDAY): range(40, 44), ("order", TUESDAY): []})
    lose_all(export.root)
    assert rebuilt(export.root).positions["shop/0"] == 34
    export.resume()


def test_a_type_that_was_ahead_of_the_job_reads_only_what_it_lacks(tmp_path: Path) -> None:
    """A process died between the commits of types and of the job; the next batch was longer."""
    export = tracked_export(tmp_path)
    rows = {("order", TUESDAY): [34, 36], ("click", TUESDAY): [35, 37]}
    shares = export.root.stage(ZERO, (34, 40), rows, pieces=(34,))
    crashed = export.root.open(Environment(at_step=crash_at_first("renamed"), sleep=lambda _: None))
    with pytest.raises(CrashError):
        export.root.land(Slice(ZERO, 34, 40, 34), {"order": shares["order"]}, {"order": 34, "click": 34}, table=crashed)
    export.expect(ZERO, rows)
    export.root.table = export.root.open()
    assert export.root.logs.taken_from("order", ZERO, 34) == 40
    more = {("order", TUESDAY): [42], ("click", TUESDAY): [35, 37, 43]}
    export.expect(ZERO, more)
    export.ends[ZERO] = 44
    shares = export.root.stage(ZERO, (34, 44), more, pieces=(34,), takes={"order": 40, "click": 34})
    export.root.land(Slice(ZERO, 34, 44, 34), shares, {"order": 34, "click": 34})
    export.check()
    lose_all(export.root)
    assert rebuilt(export.root).positions["shop/0"] == 44
    export.resume()


def crash_at_first(name: str) -> Callable[[str], None]:
    def at_step(step: str) -> None:
        if step == name:
            raise CrashError(step)

    return at_step


@pytest.mark.parametrize("lose", [lose_all, lose_job_log])
def test_a_topic_that_was_recreated_meanwhile_stops_the_rebuild(tmp_path: Path, lose: Lose) -> None:
    """Offsets of the new topic are not those of the files."""
    export = tracked_export(tmp_path)
    lose(export.root)
    [problem] = problems(export.root, [Partition("shop", "AnotherTopicId", 0)])
    assert problem.startswith("topics with the ids topicA were deleted or recreated")


def test_types_without_any_file_are_read_from_where_the_job_began(tmp_path: Path) -> None:
    export = TrackedExport(ExportRoot(job_file(tmp_path)))
    export.root.start(ZERO)
    export.write(ZERO, 0, 10, {}, deferred={("click", MONDAY): [4]})
    export.write(ZERO, 10, 20, {("order", MONDAY): [12]}, deferred={("click", MONDAY): [14]})
    lose_all(export.root)
    assert rebuilt(export.root).positions["shop/0"] == 0
    export.resume(ZERO)


def test_a_partition_without_files_is_left_to_the_next_start(tmp_path: Path) -> None:
    export = TrackedExport(ExportRoot(job_file(tmp_path)))
    export.root.start(ZERO, ONE)
    export.write(ZERO, 0, 5, {("order", MONDAY): range(5)})
    lose_all(export.root)
    assert rebuilt(export.root).positions.keys() == {"shop/0"}
    export.root.table = reopened(export.root)
    export.root.start(ONE)
    export.write(ONE, 0, 5, {("order", MONDAY): range(5)})
    export.resume()


def test_files_of_a_topic_that_the_job_no_longer_reads_stop_the_rebuild(tmp_path: Path) -> None:
    """If the job read it again later, types would lack what they had still to read."""
    export = tracked_export(tmp_path)
    mall = Partition("mall", "topicM", 0)
    export.root = ExportRoot(job_file(tmp_path, topic="shop, mall"))
    export.root.start(mall)
    export.write(mall, 0, 10, {("order", MONDAY): range(6), ("click", MONDAY): range(6, 10)}, watermark=WEDNESDAY)
    compact(export.root)
    export.root = ExportRoot(job_file(tmp_path, topic="mall"))
    lose_all(export.root)
    [problem] = problems(export.root, [mall])
    assert problem.startswith(
        "topics with the ids topicA were deleted or recreated, or the job file does not name them"
    )
    export.root = ExportRoot(job_file(tmp_path, topic="shop, mall"))
    lose_all(export.root)
    assert rebuilt(export.root, [ZERO, ONE, mall]).positions["mall/0"] == 10
    export.resume(mall, ZERO, ONE)


@pytest.mark.parametrize("seed", range(12))
def test_each_record_is_there_once_after_any_history_before_the_loss(tmp_path: Path, seed: int) -> None:
    """Random slices, lags, failures and compactions of either format; the end of a type may be lost with its log."""
    chance = random.Random(seed)
    plain = chance.random() < 0.7
    export = TrackedExport(ExportRoot(job_file(tmp_path, export="" if plain else "format: delta")))
    export.root.start(ZERO, ONE)
    ends = {ZERO: 0, ONE: 0}
    for _ in range(chance.randint(4, 14)):
        partition = chance.choice([ZERO, ONE])
        lags = sorted(export.root.state.of(partition).lags)
        if lags and chance.random() < 0.5:
            behind = export.root.state.of(partition).lags[lags[0]].position
            export.catch_up(partition, lags[0], chance.randint(behind + 1, ends[partition]))
            continue
        if plain and chance.random() < 0.15:
            compaction.compact(export.root.open(), 10**9, all_days=True, progress=None, effort=CompactionLimits())
            export.root.table = export.root.open()
            continue
        start, ends[partition] = ends[partition], ends[partition] + chance.randint(2, 12)
        rows: dict[tuple[str, str], list[int]] = {}
        for offset in range(start, ends[partition]):
            name = chance.choice(["order", "click", ""])
            if name:
                rows.setdefault((name, chance.choice([MONDAY, TUESDAY])), []).append(offset)
        has_click = {key: offsets for key, offsets in rows.items() if key[0] == "click"}
        if lags or (has_click and chance.random() < 0.3):
            deferred = {("click", MONDAY): [offset for offsets in has_click.values() for offset in offsets] or [start]}
            rows = {key: offsets for key, offsets in rows.items() if key[0] == "order" and start not in offsets}
            export.write(partition, start, ends[partition], rows, deferred=deferred)
        else:
            pieces = (start, *([start + 1] if chance.random() < 0.3 else []))
            failed = ["click"] if has_click and chance.random() < 0.2 else []
            export.write(partition, start, ends[partition], rows, pieces=pieces, failed=failed)
    export.root.table = export.root.open()
    if plain and not export.root.files():
        return
    (chance.choice([lose_all, lose_job_log, lose_types]) if plain else lose_all)(export.root)
    report = rebuilt(export.root)
    if report.problems and all("a part of the slice left no file" in problem for problem in report.problems):
        return
    assert report.ok, list(report.lines())
    export.root.table = reopened(export.root)
    for partition, end in ends.items():
        export.ends[partition] = end
        if export.root.state.of(partition).position is None:
            export.root.start(partition)
    export.resume()


def test_columns_come_from_the_files_without_those_that_the_job_computes(tmp_path: Path) -> None:
    export = TrackedExport(ExportRoot(job_file(tmp_path)))
    export.root.start(ZERO)
    export.root.logs.add_columns("order", pa.schema([("price", pa.int64())]))
    export.root.columns = pa.schema([*COLUMNS, ("price", pa.int64())])
    export.write(ZERO, 0, 5, {("order", MONDAY): range(5)})
    columns = export.root.logs.columns_of("order")
    decoded = export.root.logs.decoded_of("order")
    assert columns is not None
    lose_all(export.root)
    assert rebuilt(export.root).ok
    logs = export.root.open().logs
    restored = logs.columns_of("order")
    assert restored is not None
    assert sorted(map(str, restored)) == sorted(map(str, columns))
    assert logs.decoded_of("order") == decoded


# bad records


@pytest.mark.parametrize("lose", [lose_all, lose_job_log, lose_types])
@pytest.mark.parametrize("compacted", [False, True])
def test_replayed_rows_are_not_read_again(tmp_path: Path, lose: Lose, compacted: bool) -> None:
    """Bad records of no type became clicks later, beyond the last slice that had a click."""
    export = tracked_export(tmp_path)
    write_bad_slice(export)
    replay(export.root, {("click", TUESDAY): [40, 41]})
    export.expect(ZERO, {("click", TUESDAY): [40, 41]})
    if compacted:
        compact(export.root)
    lose(export.root)
    report = rebuilt(export.root)
    assert report.positions["shop/0"] == 42
    export.resume()
    assert finish_runs(export.root) == 0
    write_with_bad(export.root, ONE, (44, 46), {("order", WEDNESDAY): [44]}, [45], of="click")
    export.expect(ONE, {("order", WEDNESDAY): [44]})
    assert (in_quarantine(export.root), finish_runs(export.root)) == ([45], 0)
    export.check()


@pytest.mark.parametrize("texts", [{}, {"export": "format: delta"}])
def test_records_that_were_quarantined_before_are_named_and_do_not_stop_the_job(
    tmp_path: Path, texts: Mapping[str, str]
) -> None:
    export = tracked_export(tmp_path, **texts)
    write_bad_slice(export, of="click")
    lose_job_log(export.root)
    (note,) = rebuilt(export.root).notes
    assert note.startswith("records that were quarantined before are not replayed")
    export.resume()
    export.root.open().finish_pending([ZERO, ONE])
    assert in_quarantine(export.root) == []


def test_a_file_missing_before_replayed_rows_stops_the_rebuild(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    write_bad_slice(export)
    replay(export.root, {("click", TUESDAY): [40, 41]})
    lose_all(export.root)
    data(export.root, "order", TUESDAY, "shop.0.36.parquet").unlink()
    kept = data(export.root, "click", MONDAY, "shop.0.29.parquet")
    copy = kept.read_bytes()
    kept.unlink()
    replayed = next((export.root.lake / f"click/day={TUESDAY}").iterdir()).name
    assert problems(export.root) == [
        f"shop/0 offsets 30 to 41: rows of click are missing or duplicated near click/day={TUESDAY}/{replayed}"
    ]
    kept.write_bytes(copy)
    assert rebuilt(export.root).positions["shop/0"] == 34
    export.expect(ZERO, {("click", TUESDAY): [40, 41]})
    export.resume()


def write_bad_slice(export: TrackedExport, of: str = UNROUTED) -> None:
    """One more slice with orders and two bad records."""
    rows = {("order", TUESDAY): range(34, 37)}
    export.expect(ZERO, rows)
    export.ends[ZERO] = 44
    write_with_bad(export.root, ZERO, (34, 44), rows, [40, 41], of=of)


# files of other jobs


def test_files_of_another_job_below_the_same_root_are_left_alone(tmp_path: Path) -> None:
    export = tracked_export(tmp_path, export="cluster: west")
    other = TrackedExport(ExportRoot(job_file(tmp_path, name="other", topic="mall", export="cluster: east")))
    mall = Partition("mall", "topicM", 0)
    other.root.start(mall)
    other.write(mall, 0, 10, {("order", MONDAY): range(10)})
    other.write(mall, 10, 20, {("order", MONDAY): range(10, 20)})
    other.write(mall, 20, 21, {("order", WEDNESDAY): [20]}, watermark=WEDNESDAY)
    compact(other.root)
    lose_all(export.root)
    report = rebuilt(export.root)
    assert (report.ok, rows_named(export.root, "order")) == (True, 44)
    assert (rebuilt(other.root, [mall]).ok, rows_named(other.root, "order")) == (True, 21)


def test_files_under_another_cluster_stop_the_rebuild(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    lose_all(export.root)
    export.root.job_path.write_text(export.root.job_path.read_text().replace("{path:", "{cluster: eu, path:"))
    export.root.job = job_of(load_job(export.root.job_path), ExportSpec)
    assert all(reason.endswith(DISAGREE) for reason in problems(export.root))


# problems


def test_a_missing_file_in_the_middle_is_reported_with_partition_offsets_and_files(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    lose_all(export.root)
    data(export.root, "click", MONDAY, "shop.1.19.parquet").unlink()
    assert problems(export.root) == [
        f"shop/1 offsets 20 to 29: rows of click are missing or duplicated near click/day={MONDAY}/shop.1.29.parquet"
    ]


def test_a_missing_first_file_of_a_type_is_reported(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    lose_all(export.root)
    data(export.root, "click", MONDAY, "shop.1.9.parquet").unlink()
    assert problems(export.root) == [
        f"shop/1 offsets 10 to 19: rows of click are missing or duplicated near click/day={MONDAY}/shop.1.19.parquet"
    ]


def test_a_type_whose_last_file_was_lost_reads_it_again(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    lose_all(export.root)
    data(export.root, "click", MONDAY, "shop.1.29.parquet").unlink()
    assert rebuilt(export.root).positions["shop/1"] == 20
    export.resume()


def test_a_slice_of_several_pieces_needs_them_all(tmp_path: Path) -> None:
    export = TrackedExport(ExportRoot(job_file(tmp_path)))
    export.root.start(ZERO)
    export.write(ZERO, 0, 30, {("order", MONDAY): range(30), ("click", MONDAY): []}, pieces=(0, 10, 20))
    lose_all(export.root)
    lost_file = data(export.root, "order", MONDAY, "shop.0.19.parquet")
    copy = lost_file.read_bytes()
    lost_file.unlink()
    place = f"order/day={MONDAY}/shop.0.29.parquet"
    assert problems(export.root) == [f"shop/0 offsets 0 to 29: a part of the slice left no file: {place}"]
    lost_file.write_bytes(copy)
    assert rebuilt(export.root).ok
    export.resume(ZERO)


def test_a_missing_slice_is_found_through_files_of_other_types(tmp_path: Path) -> None:
    export = TrackedExport(ExportRoot(job_file(tmp_path)))
    export.root.start(ZERO)
    export.write(ZERO, 0, 20, {("order", MONDAY): [1, 11], ("click", MONDAY): [2, 12]}, pieces=(0, 10))
    lose_all(export.root)
    data(export.root, "click", MONDAY, "shop.0.12.parquet").unlink()
    assert problems(export.root) == [
        f"shop/0 offsets 0 to 19: rows of click are missing or duplicated near click/day={MONDAY}/shop.0.2.parquet"
    ]


def test_a_file_that_was_closed_early_needs_another_that_counts_it(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    lose_all(export.root)
    rewrite_footer(data(export.root, "order", MONDAY, "shop.0.5.parquet"), types=None)
    rewrite_footer(data(export.root, "click", MONDAY, "shop.0.9.parquet"), types=None)
    assert sorted(problems(export.root)) == [
        f"shop/0 offsets 0 to 9: rows of click are missing or duplicated near click/day={MONDAY}/shop.0.9.parquet",
        f"shop/0 offsets 0 to 9: rows of order are missing or duplicated near order/day={MONDAY}/shop.0.5.parquet",
    ]


def test_ranges_planned_before_others_landed_stop_the_rebuild(tmp_path: Path) -> None:
    """Processes that share a partition do not know the slice before theirs when they write."""
    export = tracked_export(tmp_path)
    lose_all(export.root)
    rewrite_footer(data(export.root, "click", MONDAY, "shop.0.29.parquet"), after=0)
    (problem,) = problems(export.root)
    assert problem.endswith(f"rows of click are missing or duplicated near click/day={MONDAY}/shop.0.29.parquet")


def test_an_original_next_to_its_compacted_file_stops_the_rebuild(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    original = data(export.root, "order", MONDAY, "shop.0.5.parquet")
    copy = original.read_bytes()
    compact(export.root)
    lose_all(export.root)
    original.write_bytes(copy)
    place = f"order/day={MONDAY}/shop.0.5.parquet"
    assert f"shop/0 offsets 0 to 9: rows of order are missing or duplicated near {place}" in problems(export.root)
    original.unlink()
    assert rebuilt(export.root).ok
    export.resume()


def test_moved_truncated_and_foreign_files_stop_the_rebuild(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    lose_all(export.root)
    moved = data(export.root, "order", TUESDAY, "shop.0.5.parquet")
    moved.parent.mkdir()
    data(export.root, "order", MONDAY, "shop.0.5.parquet").rename(moved)
    foreign = data(export.root, "order", MONDAY, "shop.0.77.parquet")
    pq.write_table(pa.table({"id": [1]}), foreign)
    whole = data(export.root, "click", MONDAY, "shop.0.9.parquet")
    whole.write_bytes(whole.read_bytes()[:-20])
    reasons = problems(export.root)
    for path, beginning in (
        (moved, DISAGREE),
        (whole, "its footer does not name the slice that wrote it: cannot read the footer"),
        (foreign, "its footer does not name the slice that wrote it"),
    ):
        assert any(reason.startswith(f"{path.relative_to(export.root.lake)}: {beginning}") for reason in reasons)


def test_rows_that_two_batches_wrote_stop_the_rebuild(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    lose_all(export.root)
    copy = data(export.root, "click", MONDAY, "shop.0.8.parquet")
    shutil.copy(data(export.root, "click", MONDAY, "shop.0.9.parquet"), copy)
    rewrite_footer(copy, batch="another", last=8)
    assert any("rows of click are missing or duplicated" in problem for problem in problems(export.root))


def test_a_type_that_the_job_file_does_not_name_stops_the_rebuild(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    lose_all(export.root)
    text = export.root.job_path.read_text()
    export.root.job_path.write_text("\n".join(line for line in text.splitlines() if not line.startswith("  click")))
    export.root.job = job_of(load_job(export.root.job_path), ExportSpec)
    assert {problem.partition(": ")[2] for problem in problems(export.root)} == {DISAGREE}


def test_a_root_without_files_has_nothing_to_restore(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    lose_all(root)
    assert problems(root) == ["there are neither positions nor data files of this job"]


def test_an_older_copy_of_one_log_stops_the_rebuild(tmp_path: Path) -> None:
    export = tracked_export(tmp_path)
    log = export.root.lake / "_penstock" / "shop" / "types" / "order"
    shutil.copytree(log, tmp_path / "older")
    export.write(ZERO, 34, 40, {("order", WEDNESDAY): range(34, 40)})
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "older", log)
    assert problems(export.root) == [JOB_LOG_IS_THERE]
    lose_types(export.root)
    assert rebuilt(export.root).ok
    export.resume()
