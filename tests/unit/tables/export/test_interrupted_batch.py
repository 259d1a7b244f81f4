"""Types ahead of the job, because a process died between its commits: they skip what they have (RULES E1 to E5)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from penstock.environment import Environment, new_batch_id
from penstock.errors import UserError
from penstock.job.spec import job_of
from penstock.lake.proposal import FencePart, Proposal
from penstock.logs.log import Slice
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.spec import ExportSpec
from penstock.tables.registry import load_job
from tests.support.export_root import MONDAY, ONE, TOKEN, WEDNESDAY, ZERO, ExportRoot, Place, filled
from tests.support.export_root import rows_in as plain_rows
from tests.support.pipes import CrashError, Recorder
from tests.unit.tables.export.bad_records import in_quarantine, write_with_bad
from tests.unit.tables.export.processes import acting_at, dying_at, quiet, restarted

ROWS = {("order", MONDAY): [34, 35], ("click", MONDAY): [36]}
TAKES = {"order": 34, "click": 34}
FORMATS = ("format: parquet", "format: delta")
# "checked" is reached before all types, then by each before its commit: at the third time one type goes on to commit
# and the other dies. (One that dies first might end the batch before the other begins.)
STEPS = [(export, step, visit) for export in FORMATS for step, visit in (("checked", 3), ("type_committed", 2))]
STEPS += [(FORMATS[0], "renaming", 1), (FORMATS[0], "renaming", 2), (FORMATS[0], "renamed", 1)]


@pytest.fixture(params=FORMATS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> ExportRoot:
    return filled(tmp_path, export=request.param)


def rows_of(root: ExportRoot) -> Counter[Place]:
    """How often readers find each row."""
    if root.logs.is_plain:
        return plain_rows(root.lake)
    counter: Counter[Place] = Counter()
    for name in ("order", "click"):
        places = pl.read_delta(str(root.lake / name)).select("kafka_partition", "kafka_offset").rows()
        counter.update((name, *place) for place in places)
    return counter


def die(root: ExportRoot, step: str = "type_committed", visit: int = 2) -> None:
    root.table = root.open(dying_at(step, visit))
    with pytest.raises(CrashError):
        root.write(ZERO, 34, 37, ROWS)


def ahead(root: ExportRoot) -> list[str]:
    """The types whose logs are beyond the job's position."""
    logs = root.open().logs
    return [name for name in ("order", "click") if logs.taken_from(name, ZERO, 34) > 34]


@pytest.mark.parametrize(("export", "step", "visit"), STEPS)
@pytest.mark.parametrize("end", [35, 36, 37, 40])
def test_the_next_process_skips_what_types_have_wherever_its_batch_ends(
    tmp_path: Path, export: str, step: str, visit: int, end: int
) -> None:
    root = filled(tmp_path, export=export)
    die(root, step, visit)
    assert root.state.of(ZERO).position == 34
    assert len(ahead(root)) == (1 if step == "checked" else 2)
    restarted(root)
    more = {("order", MONDAY): [34, 35, 37], ("click", MONDAY): [36, 38]}
    start = 34
    for stop in (end, 40) if end < 40 else (40,):
        part = {key: [offset for offset in offsets if start <= offset < stop] for key, offsets in more.items()}
        root.write(ZERO, start, stop, part)
        start = stop
    assert rows_of(root) == root.expected
    totals = root.state.of(ZERO).totals
    assert (totals.read, totals.written) == (39, 39)
    assert totals.conserved


def test_a_type_that_is_ahead_and_then_fails_writes_no_row_twice(root: ExportRoot) -> None:
    die(root)
    restarted(root)
    rows = {("order", MONDAY): [34, 35, 37], ("click", MONDAY): [36]}
    assert set(ahead(root)) == {"order", "click"}
    root.write(ZERO, 34, 38, rows, failed=["order"])
    lag = root.state.of(ZERO).lags["order"]
    assert (lag.position, lag.deferred) == (34, 3)
    root.catch_up(ZERO, {"order": 34}, 38, {("order", MONDAY): [34, 35, 37]})
    assert root.state.of(ZERO).lags == {}
    assert rows_of(root) == root.expected
    assert root.state.of(ZERO).totals.conserved


def test_records_that_a_type_quarantined_before_the_crash_are_in_quarantine_once(root: ExportRoot) -> None:
    """A clock decides whether an event is too far in the future: the next process may judge it otherwise."""
    root.table = root.open(dying_at("type_committed"))
    with pytest.raises(CrashError):
        write_with_bad(root, ZERO, (34, 37), {}, [34, 35], "order")
    assert in_quarantine(root) == []
    restarted(root)
    assert in_quarantine(root) == [34, 35], "its commit lists them"
    root.write(ZERO, 34, 37, {("order", MONDAY): [34, 35], ("click", MONDAY): [36]})
    for offset in (34, 35):
        # This time they would have been good, but the type has quarantined them already.
        del root.expected["order", 0, offset]
    assert in_quarantine(root) == [34, 35]
    assert rows_of(root) == root.expected
    assert root.state.of(ZERO).totals.conserved


def test_a_process_that_slept_while_another_wrote_the_same_records_is_refused(root: ExportRoot) -> None:
    slow = root.open()
    shares = root.stage(ZERO, (34, 37), ROWS, pieces=(34,))
    root.write(ZERO, 34, 37, ROWS)
    outcome = root.land(Slice(ZERO, 34, 37, 34), shares, TAKES, table=slow)
    assert [refusal.partition for refusal in outcome.refused] == [ZERO]
    assert rows_of(root) == root.expected


def test_a_process_whose_claim_another_one_took_is_refused_before_types_take_its_files(root: ExportRoot) -> None:
    slow = root.open()
    shares = root.stage(ZERO, (34, 37), ROWS, pieces=(34,))
    root.table.commit(Proposal(root.job.name, new_batch_id(), (FencePart(ZERO, TOKEN + 1),)))
    outcome = root.land(Slice(ZERO, 34, 37, 34), shares, TAKES, table=slow)
    assert [refusal.partition for refusal in outcome.refused] == [ZERO]
    assert ahead(root) == []
    assert rows_of(root) == root.expected


def test_a_stale_process_that_lands_types_first_is_found_ahead_and_doubles_nothing(root: ExportRoot) -> None:
    """It passes the first check of the job log, then another process commits."""
    shares = root.stage(ZERO, (34, 37), ROWS, pieces=(34,))

    def overtake() -> None:
        root.write(ZERO, 34, 40, {**ROWS, ("order", WEDNESDAY): [38]})

    stale = root.open(acting_at("checked", overtake))
    outcome = root.land(Slice(ZERO, 34, 37, 34), shares, TAKES, table=stale)
    assert outcome.version is None
    assert rows_of(root) == root.expected
    assert root.state.of(ZERO).position == 40


def test_a_type_that_another_process_moved_meanwhile_is_planned_again(root: ExportRoot) -> None:
    shares = root.stage(ZERO, (34, 37), ROWS, pieces=(34,))
    slow = root.open()
    die(root)
    outcome = root.land(Slice(ZERO, 34, 37, 34), shares, TAKES, table=slow)
    assert outcome.version is None, "the logs of its types refuse the files"
    restarted(root).write(ZERO, 34, 37, ROWS)
    assert rows_of(root) == root.expected


def test_a_type_whose_log_cannot_be_opened_does_not_block_the_others_from_finishing(tmp_path: Path) -> None:
    root = filled(tmp_path)
    root.table = root.open(dying_at("renaming"))
    with pytest.raises(CrashError):
        root.write(ZERO, 34, 37, ROWS)
    log = root.lake / "_penstock/shop/types/order/_delta_log"
    log.rename(log.with_name("away"))
    log.write_text("in the way")
    recorder = Recorder()
    root.table = root.open(Environment(listener=recorder, sleep=lambda _: None))
    root.table.finish_pending([ZERO, ONE])
    assert [event["type"] for event in recorder.named("type cannot be written")] == ["order"]
    assert ("click", 0, 36) in plain_rows(root.lake)
    root.write(ZERO, 34, 37, {("click", MONDAY): [36]}, deferred={"order": [34, 35]})
    log.unlink()
    log.with_name("away").rename(log)
    restarted(root).catch_up(ZERO, {"order": 34}, 37, {("order", MONDAY): [34, 35]})
    assert plain_rows(root.lake) == root.expected


def test_after_a_gap_a_process_that_had_read_the_lost_records_cannot_land_them(root: ExportRoot) -> None:
    """The log lost the offsets 34 to 37, and the job allows gaps; `click` has no records after them."""
    shares = root.stage(ZERO, (34, 37), ROWS, pieces=(34,))

    def overtake() -> None:
        rows = root.stage(ZERO, (34, 40), {("order", WEDNESDAY): [39]}, pieces=(34,))
        assert not root.land(Slice(ZERO, 34, 40, 38), rows, TAKES).refused
        root.expected["order", 0, 39] += 1

    slow = root.open(acting_at("checked", overtake))
    assert root.land(Slice(ZERO, 34, 37, 34), shares, TAKES, table=slow).version is None
    assert rows_of(root) == root.expected
    totals = root.state.of(ZERO).totals
    assert (totals.gap, totals.offsets, totals.conserved) == (4, 40, True)


def test_a_lost_staged_file_delays_no_type(tmp_path: Path) -> None:
    """`verify` reports the missing file."""
    root = filled(tmp_path)
    root.table = root.open(dying_at("renaming"))
    with pytest.raises(CrashError):
        root.write(ZERO, 34, 37, {("order", MONDAY): [34, 35]})
    for path in root.staged():
        (root.lake / path).unlink()
    restarted(root).write(ZERO, 34, 40, {("order", MONDAY): [34, 35, 38], ("click", MONDAY): [36]})
    lost = Counter({("order", 0, 34): 1, ("order", 0, 35): 1})
    assert plain_rows(root.lake) == root.expected - lost
    assert (root.table.failing, root.state.of(ZERO).lags) == ({}, {})


# settings


def test_a_job_file_that_was_changed_in_between_is_refused_until_the_batch_is_complete(root: ExportRoot) -> None:
    die(root, "checked", 3)
    [name] = ahead(root)
    text = root.job_path.read_text()
    changed = root.job_path.with_name("changed.yaml")

    def taken_from() -> int:
        return ExportLogs(job_of(load_job(changed), ExportSpec), quiet()).taken_from(name, ZERO, 34)

    changed.write_text(text + "on: {new_column: quarantine}\n")
    with pytest.raises(UserError, match="changed after a process died") as refused:
        taken_from()
    assert "run the job once with the job file as it was" in refused.value.hint
    changed.write_text(text + "limits: {shutdown: 7s}\n")
    assert taken_from() == 37, "what decides nothing may be changed"
    restarted(root).write(ZERO, 34, 37, ROWS)
    changed.write_text(text + "on: {new_column: quarantine}\n")
    logs = ExportLogs(job_of(load_job(changed), ExportSpec), quiet())
    assert logs.taken_from(name, ZERO, 37) == 37
