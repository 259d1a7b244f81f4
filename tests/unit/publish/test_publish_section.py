"""Where a job publishes: what its section may state, what is refused, and which cluster its clients are sent to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self, cast

import pytest

from penstock.job.faults import JobFileError, KeyPath
from penstock.job.loader import load_jobs
from penstock.job.reader import SpecReader
from penstock.job.spec import JobSpec, KafkaLogSpec, Secret, TableSpec
from penstock.job.values import Part
from penstock.logs.registry import SPECS
from penstock.publish.spec import PublishSpec, check_publish
from penstock.tables.rows import complete_rows

AT: KeyPath = ("table", "loud", "publish")
JOB = """\
job: loud
log:
  kafka: {bootstrap: "kafka-1:9092", topics: [points]}
decode: json
schema: {name: string}
table:
  loud: {path: s3://lake/loud, publish: PUBLISH}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoudSpec(TableSpec):
    """A kind of table that only this test knows, and that publishes."""

    kind = "loud"
    publish: Annotated[PublishSpec, Part.SECTION]

    def complete(self, job: JobSpec[Self], reader: SpecReader) -> JobSpec[Self]:
        check_publish(self.publish, job, AT, reader)
        return complete_rows(job, reader)[0]


def loaded(folder: Path, publish: str) -> PublishSpec:
    path = folder / "job.yaml"
    path.write_text(JOB.replace("PUBLISH", publish))
    [spec] = load_jobs([path], [LoudSpec], SPECS, {"PW": "hunter2"})
    return cast("LoudSpec", spec.table).publish


def test_a_topic_is_a_valid_log(tmp_path: Path) -> None:
    assert loaded(tmp_path, "{topic: out}") == PublishSpec("out")


def test_every_key_is_read(tmp_path: Path) -> None:
    text = (
        '{topic: out, format: json, bootstrap: "b:9093", positions_topic: places, buckets: 4, '
        'client: {security.protocol: SASL_SSL, sasl.password: "${env:PW}"}}'
    )
    settings = {"security.protocol": "SASL_SSL", "sasl.password": Secret("hunter2")}
    assert loaded(tmp_path, text) == PublishSpec("out", "json", "b:9093", settings, "places", 4)


@pytest.mark.parametrize(
    ("publish", "key"),
    [
        ("{}", "topic"),
        ("{topic: a b}", "topic"),
        ("{topic: __penstock_published}", "topic"),
        ("{topic: out, positions_topic: out}", "topic"),
        ("{topic: out, positions_topic: ..}", "positions_topic"),
        ("{topic: out, format: xml}", "format"),
        ("{topic: out, format: avro}", "format"),
        ("{topic: out, lost_positions: continue}", "lost_positions"),
        ("{topic: out, bootstrap: nowhere}", "bootstrap"),
        ("{topic: out, buckets: 0}", "buckets"),
        ("{topic: out, buckets: 1000}", "buckets"),
        ("{topic: out, client: {bootstrap.servers: x}}", "client.bootstrap.servers"),
        ("{topic: out, clent: {}}", "clent"),
    ],
)
def test_invalid_values_are_reported_at_their_key(tmp_path: Path, publish: str, key: str) -> None:
    with pytest.raises(JobFileError) as raised:
        loaded(tmp_path, publish)
    assert [fault.key for fault in raised.value.faults] == [f"table.loud.publish.{key}"]


LOG = KafkaLogSpec(
    "log:9092",
    topics=("points",),
    group="loud",
    client_settings={"sasl.password": Secret("pw"), "client.id": "reader", "fetch.min.bytes": "1"},
)


def test_by_default_clients_reach_the_cluster_of_the_log_as_its_readers_do() -> None:
    result = PublishSpec("out").cluster(LOG)
    assert result.bootstrap == LOG.bootstrap
    assert result.client_settings == {"sasl.password": "pw", "client.id": "reader"}, "but for what only readers have"


def test_another_user_may_write_to_the_cluster_of_the_log() -> None:
    bob = {"sasl.username": "bob", "sasl.password": Secret("other")}
    assert PublishSpec("out", client_settings=bob).cluster(LOG).client_settings == bob


def test_credentials_and_settings_of_the_log_never_go_to_another_cluster() -> None:
    result = PublishSpec("out", bootstrap="elsewhere:9092").cluster(LOG)
    assert (result.bootstrap, result.client_settings) == ("elsewhere:9092", {})


def test_a_job_that_reads_no_kafka_has_to_name_the_cluster(tmp_path: Path) -> None:
    wal = 'wal: {url: "http://127.0.0.1:7070", topics: [points]}'
    text = JOB.replace('kafka: {bootstrap: "kafka-1:9092", topics: [points]}', wal)
    path = tmp_path / "job.yaml"
    path.write_text(text.replace("PUBLISH", '{topic: out, bootstrap: "elsewhere:9092"}'))
    [job] = load_jobs([path], [LoudSpec], SPECS, {})
    assert cast("LoudSpec", job.table).publish.cluster(job.log).bootstrap == "elsewhere:9092"
    path.write_text(text.replace("PUBLISH", "{topic: out}"))
    with pytest.raises(JobFileError) as raised:
        load_jobs([path], [LoudSpec], SPECS, {})
    assert [fault.key for fault in raised.value.faults] == ["table.loud.publish.bootstrap"]
