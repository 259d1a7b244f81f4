"""A dry run shows what the next batch of each kind of table would write, on a real Kafka, and changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.engine.dry_run import dry_run
from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition
from penstock.logs.registry import open_log
from penstock.plan import GapError
from penstock.tables.kind import ReadRequest
from penstock.tables.preview import Output
from penstock.tables.registry import kind_of, load_job
from tests.support.kafka import Produce, Topics
from tests.support.pipes import run_in_process
from tests.support.processes import command_json

DELTA = """\
job: {topic}
log: {{kafka: {{bootstrap: "{bootstrap}", topics: [{topic}], group: {topic}}}}}
claims: {{mode: static}}
decode: json
schema: {{id: long, at: timestamp}}
columns: {{date: day(at)}}
table: {{delta: {{path: ./delta, partition_by: [date]}}}}
on: {{bad_share: 1}}
"""
KEYED = """\
job: {topic}
log: {{kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}}}
decode: json
schema: {{device: string, celsius: double, gone: boolean}}
table: {{keyed: {{path: ./keyed, row_keys: [device], delete: gone, buckets: 4}}}}
"""
EXPORT = """\
job: {topic}
log: {{kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}}}
decode: json
route: {{by: field(type), unknown: drop}}
event_time: timestamp_millis(ms)
types:
  order: {{schema: {{type: string, ms: long, price: "decimal(6,2)"}}}}
  click: {{schema: infer}}
table: {{export: {{path: ./export}}}}
"""
ROLLUP = """\
job: {topic}
log: {{kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}}}
decode: telegraf
table: {{rollup: {{path: ./rollup, windows: [1m, 10m], lateness: 0s, idle_after: 0s}}}}
"""
MARCH_MS = 1_772_323_200_000
"""2026-03-01."""


def telegraf(minute: int, *values: float, name: str = "cpu") -> str:
    at = MARCH_MS // 1000 + minute * 60
    fields = {f"f{number}": value for number, value in enumerate(values)}
    return json.dumps({"name": name, "tags": {"host": "a"}, "fields": fields, "timestamp": at})


RECORDS: dict[str, Sequence[str | None]] = {
    DELTA: [
        '{"id": 1, "at": "2026-03-01T10:00:00Z"}',
        '{"id": "x", "at": "2026-03-01T10:00:00Z"}',
        None,
        '{"id": 2, "at": "2026-03-02T10:00:00Z", "[/b]": "new"}',
        "no JSON",
    ],
    KEYED: [
        '{"device": "a", "celsius": 1.5}',
        '{"device": "b", "celsius": 2.5}',
        '{"device": "a", "celsius": 3.5}',
        '{"device": "b", "gone": true}',
    ],
    EXPORT: [
        json.dumps({"type": "order", "ms": MARCH_MS, "price": 1.5}),
        json.dumps({"type": "click", "ms": MARCH_MS, "url": "/"}),
        json.dumps({"type": "click", "ms": MARCH_MS + 86_400_000, "url": "/"}),
        json.dumps({"type": "other"}),
        json.dumps({"type": "order", "ms": 1}),
    ],
    ROLLUP: [telegraf(0, 1.0, 2.0), telegraf(0, 3.0), telegraf(11, 4.0)],
}


KINDS = {"delta": DELTA, "keyed": KEYED, "export": EXPORT, "rollup": ROLLUP}


def written_job(folder: Path, text: str, topic: Topics, produce: Produce) -> Path:
    """A job file with this text, and its records in a topic of its own."""
    name = topic()
    folder.mkdir(exist_ok=True)
    path = folder / "job.yaml"
    path.write_text(text.format(bootstrap=topic.bootstrap, topic=name), encoding="utf-8")
    produce(name, RECORDS[text])
    return path


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path, topic: Topics, produce: Produce) -> Path:
    """The file of the parameter's job."""
    return written_job(tmp_path, request.param, topic, produce)


def rows_of(output: Output) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = output.rows.to_pylist()
    return rows


def texts_of(rows: Iterable[Any], names: Iterable[str]) -> Counter[tuple[str, ...]]:
    """Spark shows instants without their zone."""
    return Counter(tuple(str(row[name]).removesuffix("+00:00") for name in names) for row in rows)


def files_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def topics_of(bootstrap: str) -> set[str]:
    """A broker creates its own topic as soon as a client of a group connects for the first time."""
    return {*AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics} - {"__consumer_offsets"}


def group_offsets(spec: JobSpec) -> Mapping[Partition, int]:
    with closing(open_log(spec)) as log:
        return log.shown(log.partitions())


@pytest.mark.parametrize("job", [DELTA], indirect=True)
def test_dry_run_of_a_delta_table_shows_rows_new_columns_and_bad_records(job: Path) -> None:
    result = dry_run(load_job(job), 1_000)
    assert (result.counts.read, result.counts.written, result.counts.quarantined, result.counts.filtered) == (
        5,
        2,
        2,
        1,
    )
    assert [(row["id"], str(row["date"]), row["kafka_offset"], row["[/b]"]) for row in rows_of(result.outputs[0])] == [
        (1, "2026-03-01", 0, None),
        (2, "2026-03-02", 3, "new"),
    ]
    [output] = result.outputs
    assert output.partitions == {"date=2026-03-01": (1, 1), "date=2026-03-02": (1, 1)}
    assert output.new_columns == ("[/b]",)
    assert [(row["offset"], row["value"]) for row in result.quarantine.to_pylist()] == [
        (1, b'{"id": "x", "at": "2026-03-01T10:00:00Z"}'),
        (4, b"no JSON"),
    ]
    assert {reason.kind.split(":")[0] for reason in result.reasons} >= {"id"}


@pytest.mark.parametrize("job", [KEYED], indirect=True)
def test_dry_run_of_a_keyed_table_shows_the_newest_row_of_each_key(job: Path) -> None:
    result = dry_run(load_job(job), 1_000)
    rows = {row["device"]: (row["celsius"], row["_delete"]) for row in rows_of(result.outputs[0])}
    assert rows == {"a": (3.5, False), "b": (None, True)}
    [output] = result.outputs
    assert output.notes[0].startswith("2 keys in ")
    assert "deletes: 1; superseded in the batch: 2" in output.notes[0]


@pytest.mark.parametrize("job", [EXPORT], indirect=True)
def test_dry_run_of_an_export_shows_each_type_by_day_and_infers_columns(job: Path) -> None:
    result = dry_run(load_job(job), 1_000)
    assert (result.counts.read, result.counts.written, result.counts.quarantined, result.counts.filtered) == (
        5,
        3,
        1,
        1,
    )
    outputs = {output.name: output for output in result.outputs}
    assert outputs["order"].partitions == {"day=2026-03-01": (1, 1)}
    assert outputs["click"].partitions == {"day=2026-03-01": (1, 1), "day=2026-03-02": (1, 1)}
    assert set(outputs["click"].new_columns) == {"type", "ms", "url"}
    assert [row["url"] for row in rows_of(outputs["click"])] == ["/", "/"]
    assert result.reasons[0].example.count("offset 4")


@pytest.mark.parametrize("job", [ROLLUP], indirect=True)
def test_dry_run_of_a_rollup_shows_partials_and_late_points(
    job: Path, spark: SparkSession, produce: Produce, bootstrap: str
) -> None:
    result = dry_run(load_job(job), 1_000)
    sums = {(row["metric"], row["window_start"].minute): row["sum"] for row in rows_of(result.outputs[0])}
    assert sums == {("cpu.f0", 0): 4.0, ("cpu.f1", 0): 2.0, ("cpu.f0", 11): 4.0}
    assert result.outputs[0].notes == ("4 points in 3 windows of 1m",)
    run_in_process(job, spark)
    # The windows before 00:11 are closed by now.
    produce(load_job(job).name, [telegraf(10, 1.0, 1.0), telegraf(1, 5.0), telegraf(12, 9.0)])
    notes = dry_run(load_job(job), 1_000).outputs[0].notes
    assert notes[1:] == (
        "3 points are late for closed windows of 1m (`late: drop`)",
        "1 points are late for closed windows of 10m (`late: drop`)",
    )


def test_a_dry_run_creates_nothing_and_imports_no_spark(
    tmp_path: Path, topic: Topics, produce: Produce, bootstrap: str
) -> None:
    jobs = [written_job(tmp_path / name, KINDS[name], topic, produce) for name in KINDS]
    topics, files = topics_of(bootstrap), files_below(tmp_path)
    script = (
        "import sys; from penstock.cli import main\n"
        "try: main()\n"
        "finally: assert not {'pyspark', 'py4j'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "run", "--dry-run", "--json", *map(str, jobs)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for job, name, report in zip(jobs, KINDS, json.loads(done.stdout), strict=True):
        assert report["counts"]["read"] == len(RECORDS[KINDS[name]])
        assert all(output["rows"] and output["partitions"] for output in report["outputs"])
        assert not group_offsets(load_job(job))
    assert files_below(tmp_path) == files
    # Other tests create topics at the same time; those of a job have its name.
    created = topics_of(bootstrap) - topics
    assert not [name for name in created if any(load_job(job).name in name for job in jobs)]


@pytest.mark.parametrize("job", [DELTA, KEYED, EXPORT], indirect=True, ids=["delta", "keyed", "export"])
def test_a_dry_run_shows_what_the_run_then_writes_and_goes_on_where_it_ended(
    job: Path, spark: SparkSession, produce: Produce
) -> None:
    spec = load_job(job)
    shown = dry_run(spec, 1_000)
    recorder = run_in_process(job, spark)
    [committed] = recorder.named("batch committed")
    for output in shown.outputs:
        written = kind_of(spec).read(spec, spark, ReadRequest(type=output.name or None)).collect()
        live = [row for row in rows_of(output) if not row.get("_delete")]
        names = [name for name in output.rows.schema.names if name != "_delete"]
        assert texts_of(written, names) == texts_of(live, names)
    assert committed["quarantined"] == shown.counts.quarantined
    assert committed["filtered"] == shown.counts.filtered
    files = files_below(job.parent)
    assert not dry_run(spec, 1_000).slices
    produce(spec.name, RECORDS[KINDS[spec.table.kind]][:1])
    result = dry_run(spec, 1_000)
    [piece] = result.slices
    assert (piece.start, piece.end) == (shown.slices[0].end, shown.slices[0].end + 1)
    assert result.counts.written == 1
    assert all(not output.new_columns for output in result.outputs)
    assert files_below(job.parent) == files


@pytest.mark.parametrize("job", [DELTA], indirect=True)
def test_text_fits_80_columns_and_names_rows_reasons_and_partitions(job: Path) -> None:
    done = CliRunner().invoke(app, ["run", "--dry-run", "-n", "1000", str(job)])
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    assert max(map(len, done.stdout.splitlines())) <= 80
    for text in ("5 records read: 2 written, 2 quarantined, 1 filtered", "day(at)", "[/b]", "new field", "offset 1"):
        assert text in done.stdout
    assert "date=2026-03-02" in done.stdout


@pytest.mark.parametrize("job", [DELTA], indirect=True)
def test_only_so_many_records_are_read(job: Path) -> None:
    result = dry_run(load_job(job), 2)
    assert [(piece.start, piece.end) for piece in result.slices] == [(0, 2)]
    assert (result.counts.read, next(iter(result.ends.values()))) == (2, 5)


@pytest.mark.parametrize("job", [DELTA], indirect=True)
def test_what_stops_a_run_is_shown_with_its_exit_code(job: Path) -> None:
    text = job.read_text(encoding="utf-8")
    job.write_text(text.replace("bad_share: 1", "bad_record: fail"), encoding="utf-8")
    done = CliRunner().invoke(app, ["run", "--dry-run", str(job)])
    assert done.exit_code == UserError.exit_code
    assert "a run would stop: a record cannot be written" in done.stdout
    assert "2 quarantined" in done.stdout


@pytest.mark.parametrize("job", [DELTA], indirect=True)
def test_with_sql_its_input_is_shown(job: Path) -> None:
    text = job.read_text(encoding="utf-8")
    job.write_text(f"{text}sql: {{select: ['id * 2 as date', at], where: id > 1}}\n", encoding="utf-8")
    [report] = command_json("run", "--dry-run", str(job))
    assert report["before_sql"]
    assert [row["id"] for row in report["outputs"][0]["rows"]] == [1, 2]
    done = CliRunner().invoke(app, ["run", "--dry-run", str(job)])
    assert "`sql:` needs Spark" in done.stdout


@pytest.mark.parametrize("job", [DELTA], indirect=True)
def test_lost_offsets_are_an_error_as_in_a_run(job: Path, spark: SparkSession, topic: Topics, produce: Produce) -> None:
    spec = load_job(job)
    run_in_process(job, spark)
    produce(spec.name, RECORDS[DELTA])
    topic.cut(spec.name, 8)
    with pytest.raises(GapError):
        dry_run(spec, 1_000)


def test_a_missing_topic_is_an_error_and_is_not_created(tmp_path: Path, bootstrap: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(DELTA.format(bootstrap=bootstrap, topic="never-created"), encoding="utf-8")
    with pytest.raises(UserError):
        dry_run(load_job(path), 1_000)
    assert "never-created" not in topics_of(bootstrap)


def test_options_of_a_run_that_a_dry_run_lacks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(DELTA.format(bootstrap="localhost:9092", topic="any"), encoding="utf-8")
    for options in (["--dry-run", "--once"], ["--dry-run", "--metrics", "9090"], ["-n", "10"]):
        done = CliRunner().invoke(app, ["run", *options, str(path)])
        assert isinstance(done.exception, UserError)


def test_many_partitions_are_counted_and_the_first_of_them_shown(
    tmp_path: Path, topic: Topics, produce: Produce
) -> None:
    job = written_job(tmp_path, DELTA, topic, produce)
    days = [f'{{"id": {day}, "at": "2026-04-{day:02}T00:00:00Z"}}' for day in range(1, 31)]
    produce(load_job(job).name, days)
    done = CliRunner().invoke(app, ["run", "--dry-run", str(job)])
    assert done.stdout.count("date=2026-") == 20
    assert "and 12 more partitions" in done.stdout
