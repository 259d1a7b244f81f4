"""The holes that research/garmadon.md section a.15 reproduces, each with the right outcome.

| scenario | what goes wrong there | test here |
|---|---|---|
| S1 | the day that is open at a crash is skipped | `test_s1_...` |
| S2 | the type that is open at a crash is skipped | `test_s2_...` |
| S5 | two clusters share files and offsets | `test_s5_...` |
| S7 | two topics share a partition number | `test_s7_...` |
| S9 | a row that is days late is written again | `test_s9_...` |
| S10 | a file is open for each day | `test_s10_...` |
| down for long | everything is read again | `test_an_exporter_that_was_down_for_months_...` |
| topic recreated | the new topic is skipped, or overwrites | `test_a_recreated_topic_...` |
| offsets gone | silently skipped | `test_records_that_retention_took_...`, `test_waiting_records_...` |

The timelines of the seed are in `test_export_timelines`, the cases of section a.17 in `test_export_upstream_cases`,
types that are added and removed in `test_export_new_types`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from penstock.engine.ownership import TopicRecreatedError
from penstock.errors import UserError
from penstock.failpoints import AtStep
from penstock.flow.write.pool import PoolLimits
from penstock.plan import GapError
from penstock.tables.export.export import TypeLaggingError
from tests.support.export_story import Story, a_month_later, after
from tests.support.exports import FIRST_DAY, ExportPipe, event, type_of
from tests.support.kafka import Produce, Topics
from tests.support.pipes import CrashError, crash_at

DAY_SECONDS = 86_400


@pytest.fixture
def story(export: ExportPipe, topic: Topics, produce: Produce) -> Story:
    return Story(export, topic(), produce)


def crash_at_visit(step: str, visit: int) -> AtStep:
    """The process ends when it reaches the step for the n-th time."""
    visits: list[str] = []

    def at_step(reached: str) -> None:
        visits.append(reached)
        if reached == step and visits.count(step) == visit:
            raise CrashError(step)

    return at_step


@pytest.mark.parametrize(
    ("step", "visit"),
    [("staged", 1), ("renaming", 2)],
    ids=["staged", "one day renamed"],
)
def test_s1_a_crash_while_two_days_are_open_loses_neither(story: Story, step: str, visit: int) -> None:
    """0 is of B; 1 to 5 are A's of yesterday, 6 to 8 A's of today, all waiting when the process writes and crashes.

    The other steps: tests/fault/test_export_kill.py.
    """
    story.export.describe(story.topic, types=[type_of("A", rotation=after(100)), type_of("B")])
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "B")
        story.read(pipeline, "AAAAA", day=-1)
        story.read(pipeline, "AAA", day=0)
    assert (story.position_of("B"), story.global_position) == (9, 1)
    with pytest.raises(CrashError):
        story.run_to_end(crash_at_visit(step, visit))
    story.run_to_end()
    days = [(number, str(day)) for number, day in story.export.rows("A", "id", "day")]
    assert days == [(n, "2026-02-28") for n in range(1, 6)] + [(n, "2026-03-01") for n in range(6, 9)]
    assert story.global_position == 9
    assert story.written() == list(range(9))


def test_s2_a_single_waiting_record_is_read_again_after_a_crash(story: Story) -> None:
    """B's only record is at 10; A is written up to 100."""
    story.export.describe(story.topic, types=[type_of("A"), type_of("B", rotation=after(100))])
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "A" * 10 + "B" + "A" * 89)
    assert (story.position_of("A"), story.global_position) == (100, 10)
    with pytest.raises(CrashError):
        story.run_to_end(crash_at("staged"))
    assert story.global_position == 10
    story.run_to_end()
    assert story.export.offsets("B") == [10]
    assert story.global_position == 100
    assert story.written() == list(range(100))


def cluster_job(export: ExportPipe, cluster: str, topic: str) -> ExportPipe:
    """The job of one cluster; all jobs share a root."""
    job = ExportPipe(export.folder, export.bootstrap, export.spark, name=f"{cluster}.yaml")
    job.describe(topic, export=f"cluster: {cluster}")
    job.path.write_text(job.path.read_text().replace("job: export", f"job: {cluster}"))
    return job


def test_s5_two_clusters_below_one_root_share_neither_files_nor_positions(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    """Both have a partition 0; am5 is far ahead of pa4, and neither uses the offset of the other."""
    names = {"pa4": topic(), "am5": topic()}
    jobs = {cluster: cluster_job(export, cluster, name) for cluster, name in names.items()}
    produce(names["am5"], [event("A", 100 + number) for number in range(9)])
    produce(names["pa4"], [event("A", number) for number in range(2)])
    clock = a_month_later()
    for job in (jobs["am5"], jobs["pa4"], jobs["am5"]):
        job.run_to_end(clock=clock)
    produce(names["pa4"], [event("A", number) for number in range(2, 5)])
    jobs["pa4"].run_to_end(clock=clock)
    assert jobs["pa4"].global_positions() == [5]
    assert jobs["am5"].global_positions() == [9]
    day = "A/day=2026-03-01"
    assert export.files("A") == [
        f"{day}/am5.{names['am5']}.0.8.parquet",
        f"{day}/pa4.{names['pa4']}.0.1.parquet",
        f"{day}/pa4.{names['pa4']}.0.4.parquet",
    ]
    assert sorted(number for (number,) in export.rows("A", "id")) == [*range(5), *range(100, 109)]


def test_s5_a_second_job_that_would_use_the_same_file_names_is_refused(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name)
    produce(name, [event("A", number) for number in range(2)])
    export.run_to_end(clock=a_month_later())
    rival = replace(export, name="rival.yaml")
    rival.describe(name)
    rival.path.write_text(rival.path.read_text().replace("job: export", "job: rival"))
    with pytest.raises(UserError) as refused:
        rival.run_to_end(clock=a_month_later())
    assert "export" in refused.value.primary
    assert export.files() == ["A/day=2026-03-01/0.1.parquet"]


def test_s7_two_topics_of_one_job_have_positions_and_names_of_their_own(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    """The first is at 6 when the second begins: its offsets 0 to 3 are not skipped."""
    first, second = topic(), topic()
    export.describe(first, second)
    produce(first, [event("A", number) for number in range(6)])
    export.run_to_end(clock=a_month_later())
    produce(second, [event("A", 100 + number) for number in range(4)])
    export.run_to_end(clock=a_month_later())
    positions = {partition.topic: export.state.global_position(partition) for partition in export.state.partitions}
    assert positions == {first: 6, second: 4}
    rows = sorted(export.rows("A", "kafka_topic", "kafka_offset", "id"))
    assert rows == sorted([(first, n, n) for n in range(6)] + [(second, n, 100 + n) for n in range(4)])
    day = "A/day=2026-03-01"
    assert export.files("A") == sorted([f"{day}/{first}.0.5.parquet", f"{day}/{second}.0.3.parquet"])


@pytest.mark.parametrize("step", ["staged", "type_committed", "committed"])
def test_s9_a_row_that_is_five_days_late_is_written_once_through_crash_and_restart(story: Story, step: str) -> None:
    story.export.describe(story.topic)
    story.send("AAA")
    story.run_to_end()
    story.send("A", day=-5)
    with pytest.raises(CrashError):
        story.run_to_end(crash_at(step))
    for _ in range(2):
        story.run_to_end()
    assert story.export.files("A") == ["A/day=2026-02-24/0.3.parquet", "A/day=2026-03-01/0.2.parquet"]
    assert story.written() == [0, 1, 2, 3]
    assert story.global_position == 4


def test_s10_an_event_for_each_of_200_days_is_filed_with_two_files_open_at_a_time(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row group of a byte has every row written when it comes: only the bound keeps 200 files from being open."""
    few = PoolLimits(open_writers_max=2, row_group_bytes_max=1)
    monkeypatch.setattr("penstock.tables.export.flow.PoolLimits", lambda **_: few)
    story.export.describe(story.topic)
    days = [-((number * 77) % 200) for number in range(200)]
    story.produce(story.topic, [event("A", number, day=day) for number, day in enumerate(days)], partition=0)
    story.run_to_end()
    result = [(number, str(day)) for number, day in story.export.rows("A", "id", "day")]
    noons = [FIRST_DAY + timedelta(days=day, seconds=number) for number, day in enumerate(days)]
    assert result == [(number, noon.date().isoformat()) for number, noon in enumerate(noons)]
    assert len({day for _, day in result}) == 200
    assert Counter(path.rsplit("/", 1)[0] for path in story.export.files("A")) == Counter(
        f"A/day={day}" for _, day in result
    )


def test_an_exporter_that_was_down_for_months_reads_on_where_it_was(story: Story) -> None:
    story.export.describe(story.topic, types=[type_of("A"), type_of("B", rotation="{every: 365d}")])
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "AABA")
    before = story.export.files()
    story.clock.seconds += 90 * DAY_SECONDS
    story.send("AAB", day=100)
    with story.export.opened(clock=story.clock) as pipeline:
        story.run_until_idle(pipeline)
        assert story.global_position == 2, "B waits as it did"
        assert story.export.files() == [*before, "A/day=2026-06-09/0.5.parquet"]
    story.run_to_end()
    assert story.global_position == 7
    assert story.written() == list(range(7))
    assert story.export.offsets("B") == [2, 6]


def test_a_recreated_topic_stops_the_export(story: Story, topic: Topics) -> None:
    """Offsets of the new topic are in the table already, and its files would have the same names."""
    story.export.describe(story.topic)
    story.send("AAA")
    story.run_to_end()
    topic.recreate(story.topic)
    story.produce(story.topic, [event("A", 100 + number) for number in range(3)], partition=0)
    with pytest.raises(TopicRecreatedError):
        story.run_to_end()
    assert story.export.files() == ["A/day=2026-03-01/0.2.parquet"]


def test_records_that_retention_took_stop_the_export_or_are_counted_as_a_gap(story: Story, topic: Topics) -> None:
    """Read up to 3; the log then begins at 5, and ends at 8."""
    story.export.describe(story.topic)
    story.send("ABC")
    story.run_to_end()
    story.send("ABCAB")
    topic.cut(story.topic, 5)
    with pytest.raises(GapError) as stopped:
        story.run_to_end()
    assert (stopped.value.position, stopped.value.first) == (3, 5)
    assert story.global_position == 3
    story.export.describe(story.topic, on="gap: record")
    story.run_to_end()
    assert story.global_position == 8
    assert story.written() == [0, 1, 2, 5, 6, 7]
    assert (story.totals.gap, story.totals.read, story.totals.written) == (2, 6, 6)


def test_waiting_records_lost_to_retention_stop_only_their_type_or_are_counted_as_vanished(
    story: Story, topic: Topics
) -> None:
    """B's records at 1, 3 and 5 wait; the log then begins at 4: two of them are lost, and the job log counts them."""
    types = [type_of("A"), type_of("B", rotation=after(100)), type_of("C", rotation=after(2))]
    story.export.describe(story.topic, types=types)
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "ABABAB")
        topic.cut(story.topic, 4)
        story.read(pipeline, "ACAC")
        story.read(pipeline, "A")
        assert story.written() == [0, 2, 4, 6, 7, 8, 9, 10], "A and C go on"
        [failure] = story.export.recorder.named("type cannot be written")
        assert (failure["type"], story.global_position) == ("B", 1)
        assert "lost offsets 1 to 3" in failure["reason"]
    with pytest.raises(TypeLaggingError, match="lost offsets 1 to 3"):
        story.run_to_end()
    assert story.global_position == 1
    story.export.describe(story.topic, types=types, on="gap: record")
    story.run_to_end()
    assert story.global_position == 11
    assert story.written() == [0, 2, *range(4, 11)]
    assert (story.totals.read, story.totals.written, story.totals.vanished, story.totals.deferred) == (11, 9, 2, 0)
