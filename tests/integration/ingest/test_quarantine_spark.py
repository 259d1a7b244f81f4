"""Records that cannot be written: in quarantine once, there to be looked at (RULES Q1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from penstock.cli.quarantine import app
from penstock.job.spec import JobSpec
from tests.support.kafka import Produce, Topics
from tests.support.quarantined import (
    BROKEN,
    EXTRA,
    GOOD,
    job_text,
    orders,
    quarantined,
    run_once,
    written,
)


@pytest.fixture
def job(bootstrap: str, topic: Topics, tmp_path: Path) -> JobSpec:
    return orders(bootstrap, topic(), tmp_path)


def test_bad_records_are_in_quarantine_once_after_any_number_of_restarts(
    job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [GOOD, BROKEN, GOOD, EXTRA])
    run_once(job, spark)
    run_once(job, spark)
    produce(job.log.topics[0], [BROKEN])
    run_once(job, spark)
    assert written(job) == [(0, 0), (0, 2)]
    assert quarantined(job) == [(0, 1), (0, 3), (0, 4)]


@pytest.fixture
def job_file(job: JobSpec, tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(job_text(job))
    return path


def test_list_prints_places_that_show_understands(
    job: JobSpec, job_file: Path, spark: SparkSession, produce: Produce
) -> None:
    name = job.log.topics[0]
    produce(name, [BROKEN, b"\xff\x00"], key="k", headers=[("trace", b"7")])
    run_once(job, spark)
    listed = json.loads(penstock("list", str(job_file), "--json").stdout)
    assert listed["rows"] == 2
    assert [item["offset"] for item in listed["newest"]] == [1, 0]
    assert f"{name}/0/1" in penstock("list", str(job_file)).stdout
    shown = penstock("show", str(job_file), f"{name}/0/0").stdout
    assert BROKEN in shown
    assert "trace = (1 B) 7" in shown
    (row,) = json.loads(penstock("show", str(job_file), f"{name}/0/1", "--json").stdout)
    assert (row["key"], row["value"]) == ({"text": "k"}, {"base64": "/wA="})


def penstock(*arguments: str, fails: bool = False) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code != 0) == fails, result.output
    return result
