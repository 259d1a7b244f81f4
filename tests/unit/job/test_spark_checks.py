"""One Spark per process: its master, its settings, jobs that disagree, and paths that executors share."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.job.faults import JobFileError
from penstock.job.spark import is_local, merged_spark, refuse_unshared
from penstock.job.spec import JobSpec
from penstock.tables.registry import check_jobs
from tests.unit.job.conftest import Load

JOB = """\
job: {name}
log:
  kafka: {{bootstrap: "127.0.0.1:9", topics: [web]}}
decode: json
schema: {{id: long}}
table:
  delta: {{path: {table}}}
{spark}
"""
EXPORT = """\
job: shop
log:
  kafka: {{bootstrap: "127.0.0.1:9", topics: [shop]}}
decode: json
route: {{by: field(type)}}
event_time: kafka.timestamp
types:
  order: {{schema: {{id: long}}}}
table:
  export: {{path: {table}}}
{spark}
"""


def job_text(spark: str = "", table: str = "./lake/web", name: str = "web") -> str:
    return JOB.format(name=name, table=table, spark=f"spark: {spark}" if spark else "")


def faults(load: Load, text: str) -> list[tuple[str, str]]:
    with pytest.raises(JobFileError) as raised:
        load(text)
    return [(fault.key, fault.message) for fault in raised.value.faults]


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]", "local[*, 4]", "local-cluster[2,1,1024]"])
def test_a_local_spark_master_is_recognised(load: Load, master: str) -> None:
    assert is_local(master)
    assert load(job_text(f'{{master: "{master}"}}')).spark.master == master


@pytest.mark.parametrize("master", ["spark://one:7077", "spark://one:7077,two:7077", "yarn", "k8s://https://host:6443"])
def test_a_remote_spark_master_is_recognised(load: Load, master: str) -> None:
    assert not is_local(master)
    assert load(job_text(f'{{master: "{master}"}}', table="s3://lake/web")).spark.master == master


@pytest.mark.parametrize("text", [JOB, EXPORT])
@pytest.mark.parametrize("table", ["./lake/web", "/lake/web"])
def test_a_local_path_on_a_cluster_is_refused_unless_it_is_written_as_a_url(load: Load, text: str, table: str) -> None:
    kind = "delta" if text is JOB else "export"
    cluster = "spark: {master: 'spark://one:7077'}"
    [(key, message)] = faults(load, text.format(name="web", table=table, spark=cluster))
    assert key == f"table.{kind}.path"
    assert "their own disks" in message
    assert load(text.format(name="web", table="file:///lake/web", spark=cluster))
    assert load(text.format(name="web", table=table, spark=""))


def test_a_local_path_is_checked_against_the_running_master(load: Load) -> None:
    job = load(job_text())
    refuse_unshared(job, "local[*,4]")
    with pytest.raises(UserError) as raised:
        refuse_unshared(job, "spark://one:7077")
    assert "file:///" in raised.value.hint
    refuse_unshared(load(job_text(table="file:///lake/web")), "spark://one:7077")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.master", "yarn"),
        ("spark.sql.session.timeZone", "Europe/Paris"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "7"),
        ("driver.memory", "1g"),
    ],
)
def test_spark_settings_that_penstock_sets_are_refused(load: Load, setting: str, value: str) -> None:
    [(key, _)] = faults(load, job_text(f'{{conf: {{{setting}: "{value}"}}}}'))
    assert key == f"spark.conf.{setting}"


def test_other_spark_settings_are_used(load: Load) -> None:
    conf = '{spark.speculation: "true", spark.python.worker.reuse: "false", spark.sql.session.timeZone: UTC}'
    assert load(job_text(f"{{conf: {conf}}}")).spark.conf["spark.speculation"] == "true"


def jobs_of(folder: Path, first: str, second: str, table: str = "s3://lake") -> list[Path]:
    paths = [folder / "a.yaml", folder / "b.yaml"]
    for path, spark in zip(paths, (first, second), strict=True):
        path.write_text(job_text(spark, table=f"{table}/{path.stem}", name=path.stem))
    return paths


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("{master: 'local[2]'}", "{master: yarn}", "spark.master is yarn in job b, and local[2] in another job"),
        (
            "{conf: {spark.driver.memory: 1g}}",
            "{conf: {spark.driver.memory: 2g}}",
            "spark.driver.memory is 2g in job b, and 1g in another job",
        ),
        (
            "{conf: {spark.hadoop.fs.s3a.secret.key: one}}",
            "{conf: {spark.hadoop.fs.s3a.secret.key: two}}",
            "spark.hadoop.fs.s3a.secret.key is '******' in job b, and '******' in another job",
        ),
    ],
)
def test_jobs_of_one_process_that_contradict_each_other_are_refused(
    tmp_path: Path, first: str, second: str, message: str
) -> None:
    specs = [job.spec for job in check_jobs(jobs_of(tmp_path, first, second)) if job.spec is not None]
    with pytest.raises(UserError) as raised:
        merged_spark(specs)
    assert raised.value.primary == message


@pytest.mark.parametrize(
    ("first", "second"),
    [("", ""), ("{master: yarn}", ""), ("", "{master: yarn}"), ("{master: yarn}", "{master: yarn}")],
)
def test_jobs_with_equal_or_no_settings_share_one_spark(tmp_path: Path, first: str, second: str) -> None:
    checked = check_jobs(jobs_of(tmp_path, first, second))
    assert not any(item.faults for item in checked)
    specs: list[JobSpec] = [file.spec for file in checked if file.spec is not None]
    assert merged_spark(specs).master == ("yarn" if first or second else None)


def test_spark_settings_of_all_jobs_are_merged(tmp_path: Path) -> None:
    first, second = "{conf: {spark.driver.memory: 1g}}", "{conf: {spark.executor.memory: 2g}}"
    specs = [job.spec for job in check_jobs(jobs_of(tmp_path, first, second)) if job.spec is not None]
    assert merged_spark(specs).conf == {"spark.driver.memory": "1g", "spark.executor.memory": "2g"}
