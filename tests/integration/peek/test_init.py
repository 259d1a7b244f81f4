"""`penstock init` on a real Kafka: the drafted job files are as expected, run unchanged, and are proven by `verify`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.tables.registry import load_job
from penstock.watch.status import status
from penstock.watch.verify import verify
from tests.integration.peek.topics import AT_MS, SHAPES, Shape
from tests.support.kafka import Produce, Topics
from tests.support.pipes import run_in_process

GOLDEN = Path(__file__).parent / "golden"
"""Written anew with PENSTOCK_GOLDEN=write; read what changed."""


def init(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["init", *arguments])


@pytest.fixture(autouse=True)
def brokers(bootstrap: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KAFKA_BROKERS", bootstrap)
    monkeypatch.chdir(tmp_path)


def fill(bootstrap: str, topic: str, shape: Shape) -> None:
    producer: Any = Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(shape.encoded()):
        key = shape.keys[number] if shape.keys else None
        headers = [(name, text.encode()) for name, text in shape.headers[number : number + 1]]
        producer.produce(topic, value, key, 0, timestamp=AT_MS + 1000 * number, headers=headers)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_drafted_job_runs_unchanged_and_is_proven(
    shape: Shape, bootstrap: str, topic: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    name = topic(name=f"init_{shape.name}", config={"retention.ms": "-1"})
    fill(bootstrap, name, shape)
    result = init(name, "-o", "job.yaml", "--json", *shape.arguments)
    assert result.exit_code == 0, result.exception
    assert json.loads(result.stdout)["kind"] == shape.kind
    path, golden = tmp_path / "job.yaml", GOLDEN / f"{shape.name}.yaml"
    text = path.read_text(encoding="utf-8")
    if os.environ.get("PENSTOCK_GOLDEN") == "write":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
    run_in_process(path, spark)
    job = load_job(path)
    [partition] = status(job).partitions
    totals = partition.totals
    assert partition.position == len(shape.values)
    assert (totals.quarantined, totals.filtered) == (shape.bad, shape.filtered)
    report = verify(job)
    assert report.ok, [check for check in report.checks if not check.ok]


def test_file_is_not_overwritten_without_asking(
    bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path
) -> None:
    name = topic()
    produce(name, ['{"at": "2026-03-01T10:00:00Z"}'])
    path = tmp_path / f"{name}.yaml"
    path.write_text("mine", encoding="utf-8")
    refused = init(name)
    assert refused.exit_code and "exists, nothing was written" in str(refused.exception)
    assert path.read_text(encoding="utf-8") == "mine"
    assert init(name, "--yes").exit_code == 0
    assert path.read_text(encoding="utf-8").startswith("# Drafted by")


def test_secrets_are_not_written(bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path) -> None:
    name = topic()
    produce(name, ["tea"])
    result = init(
        name, "-o", "job.yaml", "-X", "sasl.password=hunter2", "-X", "client.rack=r1", "--bootstrap", bootstrap
    )
    assert result.exit_code == 0, result.exception
    text = (tmp_path / "job.yaml").read_text(encoding="utf-8")
    assert "hunter2" not in text
    assert 'client: {sasl.password: "${env:KAFKA_SASL_PASSWORD}", client.rack: r1}' in text
    assert "set KAFKA_SASL_PASSWORD" in result.stdout
    assert f'bootstrap: "{bootstrap}"' in text or "${env:KAFKA_BROKERS}" in text


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("rollup", "has no metrics"),
        ("export", "tells types apart"),
        ("keyed", "looks like a key"),
        ("exprot", "there is no kind of table exprot"),
    ],
)
def test_kind_that_does_not_fit_is_refused(
    kind: str, message: str, topic: Topics, produce: Produce, tmp_path: Path
) -> None:
    name = topic()
    produce(name, ['{"n": 1}', '{"n": 2}'])
    result = init(name, "--as", kind)
    assert result.exit_code and message in str(result.exception)
    assert not list(tmp_path.iterdir())
