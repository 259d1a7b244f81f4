"""The commits of an export (RULES E1 to E5, E7) as schedules of processes, in both formats, on a disk and on S3.

A schedule is made at the failpoints of one process: what another one does there, it does in the middle of a commit.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.events import RulesMeasured
from penstock.job.spec import job_of
from penstock.storage import open_storage
from penstock.storage.objects import ObjectStorage
from penstock.tables.export.rebuild import rebuild
from penstock.tables.export.spec import ExportSpec
from penstock.tables.kind import CompactRequest
from penstock.tables.registry import kind_of
from penstock.watch.verify import Verdict, verify
from tests.support.export_world import ONE, ZERO, ExportWorld, Process, places, refused
from tests.support.lake import BUCKET, s3_server
from tests.support.pipes import CrashError
from tests.support.watched_storage import WatchedStorage

FORMATS = ("parquet", "delta")
MARKED = "complete_after: 1s"


class Acts:
    """What happens when a process reaches a step; each act happens once."""

    def __init__(self) -> None:
        self._armed: list[tuple[str, Callable[[], object]]] = []
        self._visits: dict[str, int] = {}
        self._lock = threading.Lock()

    def at(self, step: str, act: Callable[[], object], visit: int = 1) -> None:
        """Act when the step is reached for the n-th time from now on."""
        with self._lock:
            self._visits[step] = visit
            self._armed.append((step, act))

    def crash(self, step: str, visit: int = 1) -> None:
        self.at(step, _crash, visit)

    def at_step(self, step: str) -> None:
        with self._lock:
            due = [armed for armed in self._armed if armed[0] == step]
            self._visits[step] = self._visits.get(step, 0) - 1
            if not due or self._visits[step]:
                return
            self._armed.remove(due[0])
        due[0][1]()


def _crash() -> None:
    raise CrashError


def world_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> ExportWorld:
    form, _, place = kind.partition(" ")
    match place:
        case "s3":
            return ExportWorld(folder, form, f"s3://{BUCKET}/{folder.name}", request.getfixturevalue("s3"))
        case "hdfs":
            return ExportWorld(folder, form, request.getfixturevalue("hdfs").url(folder.name))
        case _:
            return ExportWorld(folder, form)


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server() as options:
        yield options


@pytest.fixture(params=FORMATS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> ExportWorld:
    """On a local disk."""
    return world_of(request.param, request, tmp_path)


@pytest.fixture(
    params=[
        *FORMATS,
        *(f"{form} s3" for form in FORMATS),
        *(pytest.param(f"{form} hdfs", marks=pytest.mark.hdfs) for form in FORMATS),
    ]
)
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> ExportWorld:
    """On every kind of storage."""
    return world_of(request.param, request, tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> ExportWorld:
    return ExportWorld(tmp_path)


@pytest.fixture
def acts() -> Acts:
    return Acts()


# E1: a type's commit is accepted only at the position that its batch was planned with


def test_stale_owner_is_refused_by_the_position_of_every_type_that_moved(world: ExportWorld, acts: Acts) -> None:
    world.send("ABABCB")
    stale = world.open(1, acts.at_step)
    staging = stale.stage(6)
    acts.at("checked", lambda: world.run(2))
    outcome = staging.commit()
    assert outcome.version is None
    world.check()
    assert world.state.of(ZERO).token == 2


def test_stale_owner_lands_rows_that_the_new_owner_finds_and_skips(anywhere: ExportWorld, acts: Acts) -> None:
    """C has no record in what the new owner has read: only the rows of the stale one are in its log."""
    anywhere.send("ABABCc")
    stale = anywhere.open(1, acts.at_step)
    staging = stale.stage(6)
    new = anywhere.open(2)
    acts.at("checked", lambda: new.stage(4).commit())
    outcome = staging.commit()
    assert outcome.version is None, "the types that moved keep it from the job's commit"
    assert (anywhere.type_position("A"), anywhere.type_position("C")) == (4, 6)
    assert anywhere.state.of(ZERO).position == 4
    version = anywhere.type_version("C")
    new.run()
    assert anywhere.type_version("C") == version
    anywhere.check()


def test_stale_owner_that_landed_all_its_types_is_refused_by_its_token(world: ExportWorld, acts: Acts) -> None:
    world.send("ABABCB")
    stale = world.open(1, acts.at_step)
    staging = stale.stage(6)
    new = world.open(2)
    # Three types commit, then the job: the new owner has fenced by then, and has planned another batch.
    planned: list[Callable[[], object]] = []
    acts.at("type_committed", lambda: planned.append(new.stage(5).commit), visit=3)
    outcome = staging.commit()
    assert refused(outcome) == [ZERO]
    assert "token" in outcome.refused[0].reason
    planned[0]()
    assert world.state.of(ZERO).position == 5
    new.run()
    world.check()


def test_rows_landed_by_a_stale_owner_between_plan_and_commit_are_planned_again(world: ExportWorld, acts: Acts) -> None:
    world.send("AB")
    world.send("AAAA", ONE)
    stale = world.open(1, acts.at_step)
    staging = stale.stage(2)
    new = world.open(2)
    planned: list[Callable[[], object]] = []
    # Both have passed the check of the job log: the stale owner's commits to types come before those of the new one.
    acts.at("checked", lambda: planned.append(new.stage({ZERO: 1, ONE: 4}).commit))
    staging.commit()
    planned[0]()
    assert world.state.of(ZERO).position == 0, "A has moved: the slice is planned again"
    assert world.state.of(ONE).position == 0
    new.run()
    world.check()


def test_only_the_partition_in_which_a_type_moved_is_planned_again(world: ExportWorld, acts: Acts) -> None:
    world.send("AB")
    world.send("CC", ONE)
    stale = world.open(1, acts.at_step)
    staging = stale.stage({ZERO: 2, ONE: 0})
    new = world.open(2)
    outcomes: list[Callable[[], object]] = []
    acts.at("checked", lambda: outcomes.append(new.stage(2).commit))
    staging.commit()
    outcomes[0]()
    assert (world.state.of(ZERO).position, world.state.of(ONE).position) == (0, 2)
    new.run()
    world.check()


# E2: the job's commit comes last, with the token and with the types that lag


@pytest.mark.parametrize("end", [2, 6, 9])
@pytest.mark.parametrize("visit", [1, 2, 3])
def test_after_a_crash_between_type_commits_the_next_owner_may_plan_any_end(
    world: ExportWorld, acts: Acts, visit: int, end: int
) -> None:
    """After the last of three types the job's commit is all that is missing."""
    world.send("AbABCBxAC")
    dying = world.open(1, acts.at_step)
    staging = dying.stage(6)
    acts.crash("type_committed", visit)
    with pytest.raises(CrashError):
        staging.commit()
    assert world.state.of(ZERO).position == 0
    world.check_nothing_twice()
    new = world.open(2)
    new.stage(end).commit()
    assert world.state.of(ZERO).position == end
    new.run()
    world.check()


def test_crash_anywhere_between_type_commits_and_job_commit_keeps_each_row_once(
    anywhere: ExportWorld, acts: Acts
) -> None:
    anywhere.send("AbAXCB")
    dying = anywhere.open(1, acts.at_step)
    staging = dying.stage(6)
    acts.crash("type_committed", 3)
    with pytest.raises(CrashError):
        staging.commit()
    anywhere.send("ABC")
    anywhere.run(2)
    anywhere.check()


@pytest.mark.parametrize("step", ["committed", "quarantined"])
def test_crash_after_the_job_commit_loses_no_quarantined_record(world: ExportWorld, acts: Acts, step: str) -> None:
    world.send("AbaXCB")
    dying = world.open(1, acts.at_step)
    staging = dying.stage(6)
    acts.crash(step)
    with pytest.raises(CrashError):
        staging.commit()
    assert world.state.of(ZERO).position == 6
    world.send("a")
    world.run(2)
    world.check()


def failing(process: Process, name: str) -> Callable[[], None]:
    """The commits of a type fail until the returned function is called."""
    log = process.logs.find_type_log(name)
    assert log is not None

    def fail(*_: object) -> None:
        raise UserError("the store refuses")

    log.commit_revised = fail  # type: ignore[method-assign, assignment]
    return lambda: log.__dict__.pop("commit_revised")


def test_type_whose_commit_fails_lags_alone_and_catches_up(world: ExportWorld) -> None:
    process = world.open()
    world.send("ABC")
    process.run()
    world.send("aABCA")
    heal = failing(process, "A")
    process.stage(6).commit()
    partition = world.state.of(ZERO)
    assert (partition.position, partition.position_of("A"), partition.position_of("B")) == (6, 3, 6)
    assert (partition.lags["A"].deferred, partition.totals.deferred) == (2, 2)
    process.stage(8).commit()
    assert world.state.of(ZERO).lags["A"].deferred == 3
    world.check_totals(world.all_places())
    heal()
    process.run()
    assert world.state.of(ZERO).lags == {}
    world.check()
    percents = process.recorder.named(RulesMeasured.name)[-1]["measured"]["failed_writes_percent"]
    assert (percents["A"] > 0, percents["B"]) == (True, 0.0), "the failed writes are counted"


@pytest.mark.parametrize("path", ["A", "_penstock/export/types/A"])
def test_type_whose_folder_or_log_is_blocked_lags_alone_and_catches_up(plain: ExportWorld, path: str) -> None:
    _lags_alone(plain, path)


def test_type_whose_table_is_blocked_lags_alone_and_catches_up(tmp_path: Path) -> None:
    _lags_alone(ExportWorld(tmp_path, "delta"), "A")


def _lags_alone(world: ExportWorld, path: str) -> None:
    world.send("ABC")
    process = world.run()
    with world.broken(path):
        world.send("aABCA")
        process.run()
        # Neither does a process that starts meanwhile wait for it.
        world.send("ABC")
        world.run(2)
        partition = world.state.of(ZERO)
        assert partition.position == partition.position_of("B") == 11
        world.send("B")
    world.run(3)
    world.check()


def test_type_that_cannot_be_created_lags_alone(world: ExportWorld) -> None:
    with world.broken("A"):
        world.send("ABACB")
        world.run()
        assert world.state.of(ZERO).position_of("B") == 5
    world.run(2)
    world.check()


# E2: catch-ups


def lagging(world: ExportWorld) -> Process:
    """B and C are at 9, A at 0 with three records left."""
    process = world.open()
    heal = failing(process, "A")
    for _ in range(3):
        world.send("ABC")
        process.stage(world.end()).commit()
    heal()
    process.table.failing.pop("A")
    assert world.state.of(ZERO).lags["A"].deferred == 3
    return process


def test_catch_up_under_an_old_token_is_refused(world: ExportWorld, acts: Acts) -> None:
    lagging(world)
    old = world.open(1, acts.at_step)
    late = old.stage_catch_up()
    new = world.open(2)
    acts.at("checked", new.run)
    outcome = late.commit()
    assert outcome.version is None
    world.check()


def test_stale_catch_up_that_landed_its_type_is_found_by_the_new_owner(world: ExportWorld, acts: Acts) -> None:
    lagging(world)
    old = world.open(1, acts.at_step)
    late = old.stage_catch_up()
    new = world.open(2)
    acts.at("type_committed", lambda: new.stage_catch_up().commit())
    assert refused(late.commit()) == [ZERO]
    new.run()
    world.check()


def test_of_two_catch_ups_only_the_first_counts(world: ExportWorld) -> None:
    one = lagging(world)
    two = world.open()
    first, second = one.stage_catch_up(), two.stage_catch_up()
    assert not refused(first.commit())
    assert refused(second.commit()) == [ZERO]
    world.check()


def test_slice_staged_before_a_catch_up_lands_after_it(world: ExportWorld) -> None:
    one = lagging(world)
    two = world.open()
    world.send("ABC")
    staging = two.stage(12)
    one.stage_catch_up().commit()
    staging.commit()
    assert world.state.of(ZERO).lags["A"].deferred == 1
    two.run()
    world.check()


def test_a_catch_up_that_reads_too_few_records_stops(world: ExportWorld) -> None:
    lagging(world)
    world.log.values[ZERO] = {offset: value for offset, value in world.log.values[ZERO].items() if offset != 4}
    with pytest.raises(UserError, match="1 offsets from 0 to 8 have no record"):
        world.open().stage_catch_up()


# E3: idle types need no commits, and a type that is ahead skips what it has


def test_idle_types_need_no_commits(world: ExportWorld) -> None:
    world.send("ABC")
    process = world.run()
    versions = [world.type_version(name) for name in "BC"]
    for _ in range(3):
        world.send("AA")
        process.run()
    assert [world.type_version(name) for name in "BC"] == versions
    assert world.type_position("C") == 3
    assert world.state.of(ZERO).position_of("C") == 9
    world.send("C")
    process.run()
    assert world.type_position("C") == 10
    world.check()


def test_type_stays_ahead_of_the_job_over_several_batches(world: ExportWorld, acts: Acts) -> None:
    world.send("CcBACCBABC")
    dying = world.open(1, acts.at_step)
    staging = dying.stage(10)
    acts.crash("type_committed", 3)
    with pytest.raises(CrashError):
        staging.commit()
    versions = {name: world.type_version(name) for name in "ABC"}
    world.send("ABC")
    new = world.open(2)
    for end in (1, 3, 4, 8):
        new.stage(end).commit()
        assert world.state.of(ZERO).position == end
        assert {name: world.type_version(name) for name in "ABC"} == versions
    new.stage(11).commit()
    assert {name for name in "ABC" if world.type_version(name) > versions[name]} == {"A"}
    new.run()
    world.check()


def test_type_that_is_ahead_and_fails_is_caught_up_without_doubling(world: ExportWorld, acts: Acts) -> None:
    world.send("CAC")
    dying = world.open(1, acts.at_step)
    staging = dying.stage(3)
    acts.crash("type_committed", 2)
    with pytest.raises(CrashError):
        staging.commit()
    world.send("CBC")
    new = world.open(2)
    heal = failing(new, "C")
    new.stage(6).commit()
    assert world.state.of(ZERO).lags["C"].deferred == 4, "all of the slice: the job does not know what C has"
    heal()
    new.run()
    world.check()


# gaps


@pytest.mark.parametrize("sent", ["ABC", "AAA"])
def test_gap_fences_all_types_against_a_former_owner(world: ExportWorld, acts: Acts, sent: str) -> None:
    """It has read records that the log lost since; for the new owner they are a gap, and stay one."""
    world.sections["on"] = "bad_record: quarantine, gap: record"
    world.send(sent)
    stale = world.open(1, acts.at_step)
    staging = stale.stage(3)

    def lose_and_go_on() -> None:
        world.log.expire(ZERO, 3)
        world.send("B")
        world.run(2)

    acts.at("checked", lose_and_go_on)
    assert staging.commit().version is None
    assert world.rows() == places("B", 3)
    assert world.totals().gap == 3
    world.check_totals(world.all_places())


def test_gap_in_a_catch_up_fences_its_type_against_a_former_owner(world: ExportWorld, acts: Acts) -> None:
    """The deferred records of the type are lost, and are counted as such once."""
    world.sections["on"] = "bad_record: quarantine, gap: record"
    lagging(world)
    stale = world.open(1, acts.at_step)
    staging = stale.stage_catch_up()

    def lose_and_go_on() -> None:
        world.log.expire(ZERO, 9)
        world.run(2)

    acts.at("checked", lose_and_go_on)
    assert staging.commit().version is None
    assert world.totals().vanished == 3
    assert world.rows() == places("-BC-BC-BC") - places("-  -  -  ")
    world.check_totals(world.all_places())


# E4: plain files appear after their commit, under names that nothing overwrites


def test_staged_files_are_hidden_and_visible_only_after_the_commit(plain: ExportWorld, acts: Acts) -> None:
    plain.send("ABC")
    process = plain.open(1, acts.at_step)
    staging = process.stage(3)
    observed: list[object] = []

    def look() -> None:
        observed.append(plain.rows())
        assert not [entry.path for entry in plain.storage.list() if _is_shown(entry.path)]

    acts.at("checked", look)
    staging.commit()
    assert len(observed) == 1
    assert plain.rows() == places("ABC")


def _is_shown(path: str) -> bool:
    """Whether a reader that globs for Parquet files finds it; logs have checkpoints of that name in time."""
    return path.endswith(".parquet") and "_delta_log" not in path


@pytest.mark.parametrize("visit", [1, 2, 3])
def test_crash_between_renames_is_finished_by_the_next_process(plain: ExportWorld, acts: Acts, visit: int) -> None:
    plain.send("ABC")
    dying = plain.open(1, acts.at_step)
    staging = dying.stage(3)
    acts.crash("renaming", visit)
    with pytest.raises(CrashError):
        staging.commit()
    assert sum(plain.rows().values()) == visit - 1
    assert len(plain.table.finishing.pending()) == 4 - visit
    plain.table.finish_renames()
    assert plain.rows() == places("ABC"), "the first process finishes them, owner or not"
    plain.run(2)
    plain.check()


def test_any_number_of_processes_finish_the_same_renames(plain: ExportWorld, acts: Acts) -> None:
    for day in range(8):
        plain.send("ABC", day=day)
    dying = plain.open(1, acts.at_step)
    staging = dying.stage(plain.end())
    acts.crash("type_committed", 3)
    with pytest.raises(CrashError):
        staging.commit()
    assert not plain.rows()
    tables = [plain.table for _ in range(6)]
    pending = [table.finishing.pending() for table in tables]
    assert all(len(renames) == 24 for renames in pending)
    with ThreadPoolExecutor(len(tables)) as pool:
        failed = list(pool.map(lambda table, renames: table.finishing.finish(renames), tables, pending))
    assert failed == [{}] * 6
    assert plain.rows() == places("ABC" * 8)
    plain.run(2)
    plain.check()


def test_a_rename_never_overwrites_a_file_of_another_program(plain: ExportWorld) -> None:
    foreign = "A/day=2026-03-01/events.0.2.parquet"
    plain.storage.put(foreign, b"foreign")
    plain.send("ABA")
    process = plain.run()
    assert "exists already" in process.table.failing["A"].reason
    plain.send("ABA")
    process.run()
    assert plain.storage.read(foreign) == b"foreign"
    assert plain.state.of(ZERO).position_of("B") == 6
    plain.storage.delete(foreign)
    process.run()
    plain.check()


def test_a_failed_rename_is_retried_and_only_its_type_waits(plain: ExportWorld) -> None:
    plain.send("ABC")
    process = plain.open()
    process.run()
    closed = {"A"}

    def watch(act: str, path: str) -> None:
        if act in ("put", "rename") and path.partition("/")[0] in closed:
            raise UserError(f"permission denied: {path}")

    process.logs.storage = WatchedStorage(process.logs.storage, watch)
    plain.send("ABCA")
    process.run()
    assert plain.rows() == places("ABC") + places("-BC-", 3) - places("-  -", 3)
    plain.send("ABC")
    process.run()
    partition = plain.state.of(ZERO)
    assert (partition.position_of("B"), partition.lags["A"].deferred) == (10, 1)
    assert len(plain.table.finishing.pending()) == 1
    closed.clear()
    process.run()
    plain.check()
    assert process.table.failing == {}


class Copying(ObjectStorage):
    """A disk on which a rename is a copy that leaves its source, as on an object store."""

    @property
    def keeps_source(self) -> bool:
        return True


@pytest.fixture
def copying(plain: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> ExportWorld:
    opened = open_storage(plain.root, {})
    assert isinstance(opened, ObjectStorage)
    opened.__class__ = Copying
    monkeypatch.setattr("penstock.tables.export.logs.open_storage", lambda url, options: opened)
    return plain


@pytest.mark.parametrize("visit", [1, 2, 3])
def test_no_row_is_visible_twice_where_a_rename_is_a_copy(copying: ExportWorld, acts: Acts, visit: int) -> None:
    copying.send("ABC")
    dying = copying.open(1, acts.at_step)
    staging = dying.stage(3)
    acts.crash("renaming", visit)
    with pytest.raises(CrashError):
        staging.commit()
    # The copy is made and its source is still there: the process died in between.
    [pending, *_] = copying.table.finishing.pending()
    storage = copying.logs.storage
    assert storage.rename_if_absent(pending.source, pending.target)
    assert storage.exists(pending.source)
    copying.check_nothing_twice()
    copying.run(2)
    assert not copying.table.finishing.pending()
    copying.check()


# E5: settings


def test_settings_changed_while_a_type_is_ahead_stop_the_job(world: ExportWorld, acts: Acts) -> None:
    before = "bad_record: quarantine"
    world.sections["on"] = before
    world.send("ABC")
    dying = world.open(1, acts.at_step)
    staging = dying.stage(3)
    acts.crash("type_committed")
    with pytest.raises(CrashError):
        staging.commit()
    world.sections["on"] = f"{before}, new_column: quarantine"
    with pytest.raises(UserError, match="changed after a process died"):
        world.run(2)
    world.sections["on"] = before
    world.sections["more"] = "limits: {shutdown: 7s}\n"
    world.run(2)
    world.sections["on"] = f"{before}, new_column: quarantine"
    world.send("ABC")
    world.run(2)
    world.check()


def test_routing_cannot_change_while_records_wait_for_a_type(world: ExportWorld) -> None:
    lagging(world)
    world.sections["by"] = "header(type)"
    with pytest.raises(UserError, match="changed while records wait"):
        world.open(2)
    del world.sections["by"]
    world.run(2)
    world.check()


# E6: lost logs


@pytest.mark.parametrize("lost", ["job", "type"])
def test_a_lost_log_stops_the_job_before_it_writes_anything_again(world: ExportWorld, lost: str) -> None:
    world.send("ABC")
    world.run()
    root = Path(world.root)
    of_type = root / "A" if world.format == "delta" else root / "_penstock/export/types/A"
    folder = (root / "_penstock/export" if lost == "job" else of_type) / "_delta_log"
    folder.rename(world.folder / "lost")
    with pytest.raises(UserError, match="penstock rebuild") as caught:
        world.run(2)
    assert caught.value.primary
    if not folder.exists():
        (world.folder / "lost").rename(folder)
        world.run(2)
        world.check()


def lose_logs(world: ExportWorld) -> None:
    home = Path(world.root) / "_penstock/export"
    shutil.rmtree(home / "_delta_log")
    shutil.rmtree(home / "types")
    assert rebuild(world.logs, world.partitions).problems == ()


def test_after_a_partition_came_back_to_a_process_lost_logs_are_restored(plain: ExportWorld) -> None:
    """Footers name the last slice before theirs, also if another process wrote it meanwhile."""
    first = plain.open(1)
    for token in (1, 2, 3):
        plain.send("ABC")
        if token == 2:
            plain.run(token)
        else:
            first.claims.token = token
            first.run()
    lose_logs(plain)
    plain.send("ABC")
    plain.run(4)
    assert plain.all_places() == plain.sent()


def test_bad_records_in_a_former_quarantine_are_not_proven_after_lost_logs_were_restored(plain: ExportWorld) -> None:
    """The job reads a partition again of which a type has no files; the type that has some skips its records."""
    plain.send("ABC")
    plain.send("AaA", ONE)
    plain.run()
    lose_logs(plain)
    plain.run(2)
    report = verify(plain.job, open_log=lambda job: plain.log.view(job.log))
    assert [check.name for check in report.checks if check.verdict is not Verdict.PROVEN] == ["former quarantine"]
    assert report.verdict is Verdict.NOT_PROVEN


# E7: days


def marker(world: ExportWorld) -> str:
    return "_penstock/export/complete/A/2026-03-01.json"


def closed_day(world: ExportWorld, acts: Acts) -> Process:
    """A process of which the first day of A is complete: every partition is a day beyond it."""
    world.sections["days"] = MARKED
    world.partitions = (ZERO,)
    world.log.values.pop(ONE)
    process = world.open(1, acts.at_step)
    for _ in range(3):
        world.send("AB")
        process.run()
    world.send("A", day=2)
    process.run()
    assert world.storage.exists(marker(world))
    return process


def test_marker_goes_before_late_rows_are_visible_and_returns(world: ExportWorld, acts: Acts) -> None:
    process = closed_day(world, acts)
    observed: list[object] = []

    def watch(act: str, path: str) -> None:
        if act == "delete" and path == marker(world) and not observed:
            observed.append(world.rows()["A", 0, 7])

    process.logs.storage = WatchedStorage(world.storage, watch)
    acts.at("type_committed", lambda: observed.append(world.storage.exists(marker(world))))
    world.send("A")
    process.run()
    assert observed == [0, False], "the late row was not visible when the marker was deleted"
    assert not world.storage.exists(marker(world)), "the watermark has to pass the late row first"
    world.send("A", day=3)
    process.run()
    assert world.storage.exists(marker(world))
    world.check()


def test_a_marker_lost_in_a_crash_is_restored(world: ExportWorld, acts: Acts) -> None:
    process = closed_day(world, acts)
    world.send("A")
    staging = process.stage(8)
    acts.crash("type_committed")
    with pytest.raises(CrashError):
        staging.commit()
    assert not world.storage.exists(marker(world))
    world.send("A", day=3)
    world.run(2)
    assert world.storage.exists(marker(world))
    world.check()


def compact(world: ExportWorld, acts: Acts) -> None:
    job = job_of(world.job, ExportSpec)
    environment = Environment(now=world.clock.now, sleep=lambda _: None, at_step=acts.at_step)
    kind_of(job).compact(job, CompactRequest(), environment, None)


@pytest.mark.parametrize("step", ["removing", "removed", "renaming"])
def test_marker_goes_before_compaction_deletes_a_file_and_returns_after_the_last_rename(
    plain: ExportWorld, acts: Acts, step: str
) -> None:
    closed_day(plain, acts)
    observed: list[bool] = []

    def look() -> None:
        observed.append(plain.storage.exists(marker(plain)))
        raise CrashError

    acts.at(step, look)
    with pytest.raises(CrashError):
        compact(plain, acts)
    assert observed == [False]
    plain.check_nothing_twice()
    compact(plain, acts)
    assert plain.storage.exists(marker(plain))
    assert len(list(plain.storage.list("A/day=2026-03-01"))) == 1
    plain.check()


# everything at once


@pytest.mark.parametrize("seed", range(2))
def test_rivals_racing_on_every_step_give_each_row_once(world: ExportWorld, seed: int) -> None:
    """Three threads act as owner, two of them under the same token."""
    for number in range(6):
        world.send("ABCaX", day=number % 2)
        world.send("CBA", ONE, day=number % 3)
    world.sections["flush"] = "allowed_latency: 1ms, max_messages_per_batch: 8"
    rng = random.Random(seed)

    def stumble(step: str) -> None:
        time.sleep(rng.random() * 0.01)

    processes = [world.open(token, stumble) for token in (1, 1, 2)]

    def run(process: Process) -> None:
        for _ in range(30):
            if process.round():
                return

    with ThreadPoolExecutor(len(processes)) as pool:
        list(pool.map(run, processes))
    world.run(3)
    world.check()
