"""What the logs of an export refuse before a record is lost or doubled, and how types enter them (RULES E5, E6)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import UserError
from penstock.job.spec import job_of
from penstock.tables.export.finishing import refuse_unnamed_files
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.spec import ExportSpec
from penstock.tables.registry import load_job
from tests.support.export_root import WEDNESDAY, ZERO, ExportRoot, filled, job_file
from tests.unit.tables.export.processes import quiet

FORMATS = pytest.mark.parametrize("export", ["format: parquet", "format: delta"])
VIEW = "  view: {{schema: {{at: string, id: long}}{more}}}\n"


def with_view(root: ExportRoot, more: str = "") -> Path:
    """The job file with one more type."""
    path = root.job_path.with_name("later.yaml")
    path.write_text(root.job_path.read_text().replace("table:", f"{VIEW.format(more=more)}table:"))
    return path


def logs_of(path: Path) -> ExportLogs:
    return ExportLogs(job_of(load_job(path), ExportSpec), quiet())


# types


def test_a_type_that_is_added_later_starts_at_the_position_of_the_others(tmp_path: Path) -> None:
    later = ExportRoot(with_view(filled(tmp_path)))
    assert later.state.of(ZERO).lags == {}
    assert later.state.position_of(ZERO, "view") == 34


def test_a_job_file_without_a_type_of_the_table_is_refused(tmp_path: Path) -> None:
    root = filled(tmp_path)
    ExportRoot(with_view(root))
    with pytest.raises(UserError, match="does not name: view"):
        logs_of(root.job_path).agree_on_types()


def test_a_process_that_does_not_know_a_type_cannot_commit(tmp_path: Path) -> None:
    """It would skip the records of that type for ever."""
    root = filled(tmp_path)
    ExportRoot(with_view(root))
    with pytest.raises(UserError, match="does not name: view"):
        root.write(ZERO, 34, 36, {("order", WEDNESDAY): [34, 35]})
    assert root.state.of(ZERO).position == 34


def test_columns_that_records_bring_are_added_to_the_log_of_their_type_alone(tmp_path: Path) -> None:
    root = filled(tmp_path)
    root.logs.add_columns("order", pa.schema([("price", pa.int64())]))
    logs = logs_of(root.job_path)
    orders, clicks = logs.columns_of("order"), logs.columns_of("click")
    assert orders is not None and clicks is not None
    assert ("price" in orders.names, "price" in clicks.names) == (True, False)
    assert "day" not in orders.names


# routes


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("by: field(type)", "by: field(at)"),
        ("click: {schema", 'click: {values: ["click", "tap"], schema'),
        ("decode: json", "decode: json\non: {tombstone: quarantine}"),
    ],
)
def test_other_routes_are_refused_while_records_wait_for_a_type(tmp_path: Path, before: str, after: str) -> None:
    root = filled(tmp_path)
    text = root.job_path.read_text()
    assert before in text
    changed = root.job_path.with_name("changed.yaml")
    changed.write_text(text.replace(before, after))
    root.write(ZERO, 34, 36, {("order", WEDNESDAY): [34]}, deferred={"click": [35]})
    with pytest.raises(UserError, match="changed while records wait") as refused:
        logs_of(changed).agree_on_types()
    assert "click" in refused.value.detail
    root.catch_up(ZERO, {"click": 35}, 36, {("click", WEDNESDAY): [35]})
    logs_of(changed).agree_on_types()
    assert logs_of(changed).state().routing == logs_of(changed).routing() != logs_of(root.job_path).routing()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("by: field(type)", "by: field(at)"),
        ("event_time: at", "event_time: kafka.timestamp"),
        ("decode: json", "decode: json\non: {tombstone: quarantine}"),
        ("decode: json", "decode: json\ncolumns: {kind: lower(type)}"),
    ],
)
def test_e5_settings_that_decide_which_records_are_rows_change_the_hash_of_a_type(
    tmp_path: Path, before: str, after: str
) -> None:
    root = filled(tmp_path)
    text = root.job_path.read_text()
    assert before in text
    changed = root.job_path.with_name("changed.yaml")
    changed.write_text(text.replace(before, after))
    assert logs_of(changed).settings_of("click") != logs_of(root.job_path).settings_of("click")


def test_reordering_types_in_the_job_file_keeps_the_route(tmp_path: Path) -> None:
    root = filled(tmp_path)
    lines = root.job_path.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  order:"))
    lines[first : first + 2] = reversed(lines[first : first + 2])
    changed = root.job_path.with_name("changed.yaml")
    changed.write_text("\n".join(lines))
    assert logs_of(changed).routing() == logs_of(root.job_path).routing()


# lost logs


@FORMATS
def test_a_lost_job_log_is_refused(tmp_path: Path, export: str) -> None:
    root = filled(tmp_path, export=export)
    shutil.rmtree(root.lake / "_penstock/shop/_delta_log")
    logs = logs_of(root.job_path)
    with pytest.raises(UserError) as refused:
        refuse_unnamed_files(logs)
        logs.agree_on_types()
    assert "penstock rebuild" in refused.value.hint
    assert not (root.lake / "_penstock/shop/_delta_log").exists()


@FORMATS
@pytest.mark.parametrize("recreated", [False, True])
def test_a_lost_or_recreated_log_of_a_type_is_refused(tmp_path: Path, export: str, recreated: bool) -> None:
    root = filled(tmp_path, export=export)
    folder = root.lake / ("_penstock/shop/types/order" if root.logs.is_plain else "order")
    shutil.rmtree(folder / "_delta_log")
    if recreated:
        (tmp_path / "other").mkdir()
        other = ExportRoot(job_file(tmp_path / "other", export=export))
        place = other.lake / ("_penstock/shop/types/order" if root.logs.is_plain else "order")
        shutil.copytree(place / "_delta_log", folder / "_delta_log")
    with pytest.raises(UserError, match="log of type order") as refused:
        logs_of(root.job_path).agree_on_types()
    assert "penstock rebuild" in refused.value.hint


def test_an_older_copy_of_the_logs_is_refused(tmp_path: Path) -> None:
    root = filled(tmp_path)
    home = root.lake / "_penstock/shop"
    shutil.copytree(home, tmp_path / "copy")
    root.write(ZERO, 34, 40, {("order", WEDNESDAY): range(34, 40)})
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "copy", home)
    with pytest.raises(UserError, match=r"order/.*shop\.0\.39\.parquet"):
        refuse_unnamed_files(logs_of(root.job_path))


def test_files_of_other_programs_do_not_stop_the_job(tmp_path: Path) -> None:
    root = filled(tmp_path)
    foreign = root.lake / f"order/day={WEDNESDAY}/shop.0.99.parquet"
    foreign.write_bytes(b"foreign")
    refuse_unnamed_files(logs_of(root.job_path))
