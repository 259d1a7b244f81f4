"""The unit-test cases of research/garmadon.md section a.17, as far as they mean something here, end to end.

| there | here |
|---|---|
| HdfsOffsetComputer: names recognised, junk, unordered, several partitions, clusters | `unit/tables/test_final_names` |
| ... junk next to the data, no file at all | `test_positions_never_come_from_files_in_the_folders` |
| ... files of several days, the oldest ignored | `test_export_timelines`: time-based partitioning, at each t |
| OffsetResetter: types at 10, 15 and unknown, a partition never read | `test_types_at_10_and_15_and_unknown_...` |
| ... an error while looking for offsets is "from the beginning" | it stops: `unit/tables/test_ledger_codec` |
| ... revoked partitions | `test_export_timelines`: rebalancing |
| PartitionsPauseState: one failing type pauses all | `test_export_timelines`: unhappy; no process is paused |
| Heartbeat: one per partition and writer, the highest offset | `test_positions_move_without_a_single_row_...` |
| PartitionedWriter 1: two partitions, two days | `test_export`: by type and UTC day |
| ... 2: an expired writer is closed, the next row opens another | `test_export_timelines`: happy |
| ... 4: a writer whose close fails is tried again, the others are closed | `test_a_file_that_cannot_be_put_...` |
| ... 5: a failing checkpoint fails nothing | `test_a_marker_that_cannot_be_written_...` |
| ... 6: below its own start a type skips, and opens no file | `test_types_at_10_and_15_and_unknown_...` |
| ... 7, 8: dropped partitions | `test_export_timelines`: rebalancing, a lost claim |
| ... 10, 11: heartbeats are rows | `test_positions_move_without_a_single_row_...`: never |
| ExpiringConsumer: expired after the third write | `test_a_type_is_written_at_its_third_event_...` |
| ... after a time that a later write does not renew | `test_export_timelines`: sparse events |
| ProtoParquetWriter: rows in order | `test_a_type_is_written_at_its_third_event_...` |
| ... rename fails; files of another schema | `test_a_file_that_cannot_be_put_...`; `test_export`: inferred |
| ... an existing file is merged or kept | kept: `test_a_file_of_somebody_else_...` |
| FsBasedCheckpointer, DelayedDailyPathComputer | `test_a_day_is_marked_...` |
| GarmadonReader, GarmadonMessage, ProtoConcatenator | `unit/flow/test_garmadon`, `unit/flow/test_envelope` |
| Hive*, FileSystemUtils, PrometheusMetrics | nothing of that kind here; metrics in `unit/watch` |
"""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

from penstock.tables.export.export import TypeLaggingError
from tests.support.export_story import Story, after
from tests.support.exports import ExportPipe, event, type_of
from tests.support.kafka import Produce, Topics
from tests.support.pipes import CrashError, crash_at, once_at

HOUR = 3600
RETRY_SECONDS = 30
DAY_FOLDER = "A/day=2026-03-01"


@pytest.fixture
def story(export: ExportPipe, topic: Topics, produce: Produce) -> Story:
    return Story(export, topic(), produce)


def test_positions_never_come_from_files_in_the_folders(story: Story) -> None:
    """File names like those of the job, junk, and emptied folders: only the job log has the position."""
    story.export.describe(story.topic)
    story.send("AAA")
    story.run_to_end()
    folder = story.export.root / DAY_FOLDER
    for name in (f"{story.topic}.0.900.parquet", "0.900.parquet", "1.12", "abc", "12e", "0.abc", "0.index=1.12"):
        (folder / name).write_text("junk")
    story.send("AA")
    story.run_to_end()
    assert story.global_position == 5
    shutil.rmtree(story.export.root / "A")
    story.send("AA")
    story.run_to_end()
    assert story.global_position == 7
    assert story.export.offsets("A") == [5, 6], "what a person deletes is not read again"


def test_types_at_10_and_15_and_unknown_resume_at_the_lowest_and_skip_their_rows(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    """B waits since 10, C since 15 (its 11 and 12 are written), D never had an event; partition 1 has no record.

    offset  0 .. 9 | 10 11 12 | 13 14 15 | 16 17 |
    type    A .. A | B  C  C  | A  A  C  | B  C  |
    """
    waiting = after(2)
    story = Story(export, topic(partitions=2), produce)
    types = [type_of("A"), type_of("B", rotation=waiting), type_of("C", rotation=waiting), type_of("D")]
    export.describe(story.topic, types=types)
    with export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "A" * 10)
        story.read(pipeline, "BCC")
        story.read(pipeline, "AAC")
    assert [story.position_of(name) for name in "ABCD"] == [16, 10, 15, 16]
    assert export.global_positions() == [10, 0]
    with export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "BC")
        planned = export.recorder.named("batch planned")[-1]
    assert planned["offsets"] == 8, "one pass from 10 to 17 for both"
    assert export.offsets("B") == [10, 16]
    assert export.offsets("C") == [11, 12, 15, 17]
    assert export.global_positions() == [18, 0]
    assert not (export.root / "D").exists()
    assert story.written() == list(range(18))


def test_positions_advance_without_inventing_rows(export: ExportPipe, topic: Topics, produce: Produce) -> None:
    """Bad, unknown and empty records, records out of order in event time, a type and a partition that stay idle."""
    story = Story(export, topic(partitions=2), produce)
    export.describe(story.topic, route="unknown: drop")
    produce(story.topic, [event("A", 0, day=2), event("A", 1), event("Z", 2), None, "not json"], partition=0)
    story.run_to_end()
    assert export.global_positions() == [5, 0]
    produce(story.topic, [event("Z", 5), event("Z", 6)], partition=0)
    story.run_to_end()
    assert export.global_positions() == [7, 0], "a slice without any row moves every type"
    assert export.rows("A", "kafka_offset", "id") == [(0, 0), (1, 1)]
    assert {path.split("/")[0] for path in export.files()} == {"A"}
    assert export.quarantined() == [(0, 4)]
    assert story.totals.conserved


def test_a_type_is_written_at_its_third_event_and_not_before(story: Story) -> None:
    story.export.describe(story.topic, types=[type_of("A", rotation=after(3))])
    with story.export.opened(clock=story.clock) as pipeline:
        for kinds, files in [("A", 0), ("A", 0), ("A", 1), ("AA", 1), ("AA", 2)]:
            story.read(pipeline, kinds)
            assert len(story.export.files()) == files
    assert story.export.files() == [f"{DAY_FOLDER}/0.2.parquet", f"{DAY_FOLDER}/0.6.parquet"]
    frames = [pl.read_parquet(story.export.root / path)["kafka_offset"].to_list() for path in story.export.paths()]
    assert frames == [[0, 1, 2], [3, 4, 5, 6]], "rows are in the order of the log"


def take_folder_away(root: Path) -> None:
    shutil.rmtree(root / "A")
    (root / "A").write_text("in the way")


def test_a_file_that_cannot_be_renamed_is_renamed_later_and_delays_no_other(story: Story) -> None:
    """A's folder is deleted between its check and the rename, after the commit: RULES E4."""
    story.export.describe(story.topic, types=[type_of("A"), type_of("B")])
    at_step = once_at("renaming", lambda: take_folder_away(story.export.root))
    with story.export.opened(at_step, story.clock) as pipeline:
        story.read(pipeline, "AB")
        assert story.written() == [1]
        assert story.global_position == 2, "the row of A is committed, and nothing has to be read again"
        story.read(pipeline, "BA")
        assert story.written() == [1, 2]
        assert (story.position_of("A"), story.position_of("B"), story.global_position) == (3, 4, 3)
        story.unblock("A")
        story.clock.seconds += RETRY_SECONDS
        story.run_until_idle(pipeline)
    assert story.written() == [0, 1, 2, 3]
    assert story.global_position == 4


def test_a_bounded_run_reports_a_file_that_is_not_in_its_final_place(story: Story) -> None:
    story.export.describe(story.topic, types=[type_of("A"), type_of("B")])
    story.send("AB")
    with pytest.raises(TypeLaggingError):
        story.run_to_end(once_at("renaming", lambda: take_folder_away(story.export.root)))
    assert story.written() == [1]
    story.unblock("A")
    story.run_to_end()
    assert story.written() == [0, 1]
    assert story.global_position == 2


def test_a_foreign_file_under_a_final_name_is_never_overwritten(story: Story) -> None:
    """It has the final name of A's file: A waits alone until a person has moved it."""
    story.export.describe(story.topic, types=[type_of("A"), type_of("B")])
    story.send("B")
    story.run_to_end()
    foreign_file = story.export.file(f"{DAY_FOLDER}/0.1.parquet")
    foreign_file.parent.mkdir(parents=True)
    foreign_file.write_text("foreign")
    story.send("AB")
    with pytest.raises(TypeLaggingError):
        story.run_to_end()
    assert foreign_file.read_text() == "foreign"
    assert story.export.offsets("B") == [0, 2]
    assert story.position_of("A") == 3, "committed, and visible once the name is free"
    foreign_file.unlink()
    story.run_to_end()
    assert story.written() == [0, 1, 2]
    assert story.global_position == 3


@pytest.mark.parametrize("flushing", [True, False], ids=["bounded run", "rounds"])
def test_a_process_that_cannot_rename_a_file_reports_it_and_ends_or_waits(story: Story, flushing: bool) -> None:
    """The process before died after its commit, and A's folder was deleted: A is not up to date, with no new record."""
    story.export.describe(story.topic, types=[type_of("A"), type_of("B")])
    story.run_to_end()
    story.send("AB")
    with pytest.raises(CrashError):
        story.run_to_end(crash_at("renaming"))
    take_folder_away(story.export.root)
    if flushing:
        with pytest.raises(TypeLaggingError):
            story.run_to_end()
        story.unblock("A")
        story.run_to_end()
    else:
        with story.export.opened(clock=story.clock) as pipeline:
            story.run_until_idle(pipeline)
            assert (story.position_of("A"), story.position_of("B"), story.global_position) == (0, 2, 0)
            story.unblock("A")
            story.clock.seconds += RETRY_SECONDS
            story.run_until_idle(pipeline)
    assert story.written() == [0, 1]
    assert story.global_position == 2


def hours(kind: str, after_noon: float) -> str:
    """An event some hours after noon of the first day."""
    return event(kind, int(after_noon * HOUR))


def test_a_day_is_marked_complete_once_and_opened_again_by_a_late_row_that_is_filed_in_it(story: Story) -> None:
    """A day is complete two hours after its end: that is 14 hours after noon."""
    export, moments = story.export, []
    export.describe(story.topic, types=[type_of("A"), type_of("B")])
    marker = export.root / "_penstock/export/complete/A/2026-03-01.json"

    def day_events() -> list[tuple[str, str, str]]:
        return [
            (name, fields["type"], fields["day"]) for name, fields in export.recorder.events if name.startswith("day ")
        ]

    with export.opened(clock=story.clock) as pipeline:
        for after_noon in (0, 14 - 1 / HOUR, 14, 15):
            story.produce(story.topic, [hours("A", after_noon)])
            story.run_until_idle(pipeline)
            moments.append(marker.exists())
        assert moments == [False, False, True, True]
        complete = ("day complete", "A", "2026-03-01")
        assert day_events() == [complete], "B has no rows of the day, so it has nothing to complete"
        story.produce(story.topic, [hours("A", 1)])
        story.run_until_idle(pipeline)
        assert not marker.exists()
        assert day_events() == [complete, ("day opened again", "A", "2026-03-01")]
    with export.opened(clock=story.clock) as pipeline:
        story.produce(story.topic, [hours("B", 18)])
        story.run_until_idle(pipeline)
        assert marker.exists(), "the watermark is two hours behind the late row's moment"
    assert day_events()[2:] == [complete]
    days = [(number, str(day)) for number, day in export.rows("A", "kafka_offset", "day")]
    assert days == [(0, "2026-03-01"), (1, "2026-03-02"), (2, "2026-03-02"), (3, "2026-03-02"), (4, "2026-03-01")]


def test_a_marker_that_cannot_be_written_fails_nothing_and_is_made_at_the_next_start(story: Story) -> None:
    story.export.describe(story.topic, types=[type_of("A")])
    home = story.export.root / "_penstock/export"
    home.mkdir(parents=True)
    (home / "complete").write_text("in the way")
    story.produce(story.topic, [hours("A", 0), hours("A", 15)])
    recorder = story.run_to_end()
    assert len(recorder.named("day marker failed")) >= 1
    assert story.written() == [0, 1]
    (home / "complete").unlink()
    story.run_to_end()
    assert (home / "complete/A/2026-03-01.json").exists()
