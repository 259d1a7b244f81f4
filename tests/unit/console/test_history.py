"""The history of the console: tiers, bounds, restarts."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.console.charts import line_chart, sparkline
from penstock.console.history import DAY, HOUR, History, Point
from penstock.console.pages.table import schema_changes
from penstock.console.poller import points_of, rate_of, rates
from penstock.console.rendering import duration, short
from penstock.errors import UserError
from tests.support.console import watched
from tests.support.small_table import SmallTable, small_job

NOW = 2_000_000_000


def filled(history: History, seconds: int, step: int, partitions: int = 1) -> None:
    for age in range(seconds, -1, -step):
        at = NOW - age
        history.observe("web", {str(number): Point(at, age, None, seconds - age) for number in range(partitions)})


def test_the_older_the_coarser_and_nothing_is_older_than_a_week(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite")
    filled(history, 9 * DAY, 600)
    history.prune(NOW)
    history._pruned_at = 0
    history.prune(NOW)
    points = {seconds: history.points("web", seconds, "0", NOW) for seconds in (HOUR, DAY, 30 * DAY)}
    assert len(points[HOUR]) == 6 and len(points[DAY]) == 144
    assert points[30 * DAY][0].at >= NOW - 7 * DAY and len(points[30 * DAY]) == pytest.approx(7 * DAY / 900, abs=2)
    history.close()


def test_a_point_has_the_last_value_of_its_span(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite")
    for at, lag in ((NOW, 5), (NOW + 4, 9), (NOW + 30, 1)):
        history.observe("web", {"": Point(at, lag, None, lag)})
    assert [point.lag for point in history.points("web", HOUR, now=NOW + 40)] == [9, 1]
    history.close()


def test_the_file_stays_within_its_bound_and_keeps_what_is_newest(tmp_path: Path) -> None:
    bound = 1_000_000
    history = History(tmp_path / "h.sqlite", bytes_max=bound)
    for age in range(6 * DAY, 0, -900):
        points = {str(number): Point(NOW - age, age, age, age) for number in range(40)}
        history.observe("web", points)
        if age % (6 * HOUR) == 0:
            history._pruned_at = 0
            history.prune(NOW - age)
    assert history.size_bytes() <= bound
    newest = history.points("web", 7 * DAY, "7", NOW)[-1]
    assert newest.at == (NOW - 900) // 900 * 900
    history.close()
    assert (tmp_path / "h.sqlite").stat().st_size <= bound


def test_a_full_history_refuses_no_observation_loudly(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite", bytes_max=200_000)
    for number in range(50):
        history.note("action", "web", "x" * 10_000, who=str(number))
    assert history.size_bytes() <= 200_000
    assert history.notes()
    history.close()


def test_history_survives_a_restart_and_a_kill(tmp_path: Path) -> None:
    first = History(tmp_path / "h.sqlite")
    first.observe("web", {"": Point(NOW, 3, 1, 10), "web/0": Point(NOW, 3, 1, 10)})
    first.add_commits("web", [(7, NOW, {"version": 7}), (8, NOW, {"version": 8})])
    first.add_commits("web", [(8, NOW, {"version": 8})])
    first.note("action", "web", "replay", "olga", {"rows": 4})
    # The first one is still open, as after a kill.
    second = History(tmp_path / "h.sqlite")
    assert second.points("web", HOUR, "web/0", NOW + 1) == [Point(NOW // 15 * 15, 3, 1, 10)]
    assert [commit["version"] for commit in second.commits("web")] == [8, 7]
    assert second.notes("action", "web")[0].content == {"rows": 4}
    second.close()
    first.close()


def test_a_file_that_is_not_a_history_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    path.write_bytes(b"something else " * 100)
    with pytest.raises(UserError):
        History(path)
    assert path.read_bytes() == b"something else " * 100
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version = 99")
    with pytest.raises(UserError) as error:
        History(path)
    assert "version 99" in error.value.primary


def test_rates_are_those_between_points_and_a_recreated_table_gives_zero() -> None:
    points = [Point(0, 0, 0, 100), Point(10, 0, 0, 200), Point(20, 0, 0, 0), Point(30, 0, 0, 50)]
    assert [rate for _, rate in rates(points)] == [10, 0, 5]
    assert rate_of(points[:2]) == 10
    assert rate_of(points[:1]) is None and rate_of([]) is None


def test_a_chart_breaks_where_nothing_was_measured_and_says_what_it_shows() -> None:
    values = [(at, float(at)) for at in range(0, 300, 15)] + [(at, 5.0) for at in range(3000, 3060, 15)]
    chart = line_chart(values, "Lag <of> web", short)
    assert chart.count('class="line"') == 2
    assert "<title>Lag &lt;of&gt; web: now 5, at least 0, at most 285</title>" in chart
    assert chart.count("<tr>") == 13
    assert "no values yet" in line_chart([], "Lag", short) and "no values yet" in sparkline([(1, None)], "Lag")
    assert 'class="dot"' in sparkline([(1, 0.0)], "Lag")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (0.25, "0.2"), (999, "999"), (1000, "1k"), (12_345, "12.3k"), (3.2e6, "3.2M"), (None, "–")],
)
def test_short_numbers(value: float | None, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.0214, "21ms"), (4.21, "4.21s"), (59, "59s"), (125, "2min"), (90_000, "25h")]
)
def test_durations_have_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_age_of_a_partition_without_unread_records_is_zero_and_unknown_ages_stay_unknown(tmp_path: Path) -> None:
    job = watched(tmp_path, lags=(0, 2000))
    assert job.status is not None
    points = points_of(job.status, NOW)
    assert [points[key].age for key in ("orders/0", "orders/1", "")] == [0, 2, 2]
    away = [replace(item, end=None, lag_seconds=None) for item in job.status.partitions]
    assert points_of(replace(job.status, partitions=tuple(away)), NOW)[""].age is None


def test_added_columns_are_changes_of_the_table(tmp_path: Path) -> None:
    table = SmallTable(small_job("127.0.0.1:1", "orders", tmp_path)).table
    table.add_columns(pa.schema([("coupon", pa.string())]))
    table.refresh()
    assert [change.text for change in schema_changes(table)] == ["add column: coupon string", "create table: 3 columns"]
