"""What commands leave on terminals of 80 and 140 columns; captures are in tests/golden/terminal.

With PENSTOCK_GOLDEN=write the captures are written.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from penstock.embedded.broker import Cluster
from tests.support import forked, spark_jvms
from tests.support.fast_commands import write_penstock
from tests.support.kafka import Produce, Topics
from tests.support.terminal import screen

GOLDEN = Path(__file__).parents[1] / "golden" / "terminal"
TOPIC = "terminal_orders"
AT_MS = 1_772_359_200_000
JOB = """\
job: orders
log: {kafka: {bootstrap: "${env:KAFKA_BROKERS}", topics: [terminal_orders]}}
decode: json
schema: {id: long, price: "decimal(10,2)", at: timestamp, customer: {name: string, city: string}}
columns: {day: day(at)}
table: {delta: {path: ./lake/orders, partition_by: [day]}}
on: {bad_share: 1}
"""
BROKEN = """\
job: orders
log: {kafka: {bootstrap: "kafka-1:9092", topics: [orders]}}
decode: jsn
schema: {id: lon, price: "decimal(100,2)"}
columns: {day: day(id)}
table: {delta: {path: ./lake/orders, partition_by: [days]}}
"""
RECORDS = [
    '{"id": 1, "price": 9.5, "at": "2026-03-01T09:59:00Z", "customer": {"name": "Ann", "city": "Bern"}}',
    '{"id": 2, "price": 12, "at": "2026-03-01T09:59:30Z", "customer": {"name": "Bob", "city": "Ulm"}}',
    '{"id": 3, "price": "dear", "at": "2026-03-01T09:59:40Z"}',
    '{"id": 4, "price": 1.25, "at": "2026-02-28T23:59:59Z", "coupon": "X-1"}',
]
COMMANDS = [
    ["check", "broken.yaml"],
    ["peek", TOPIC],
    ["run", "--dry-run", "job.yaml"],
    ["run", "--once", "job.yaml"],
    ["status", "job.yaml"],
    ["status", "-v", "job.yaml"],
    ["verify", "job.yaml"],
    ["quarantine", "list", "job.yaml"],
]
"""In their order: `run` writes what the later ones show."""
VARYING = [
    (r"127\.0\.0\.1:\d{5}", "127.0.0.1:29092"),
    (r"/tmp/penstock-\w{8}", "/tmp/penstock-examples"),
    (r"version (\d) of(\s)\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", r"version \1 of\g<2>2026-03-01 10:05:00Z"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.\d{3}Z(?=  \d+ B)", "2026-03-01T10:05:00.000Z"),
    (r"committed \d\d:\d\d:\d\dZ", "committed 10:05:00Z"),
    (r" +lag 0 +[\d,.]+/s", "  lag 0  32/s"),
]
"""What differs from run to run: addresses, folders, times and rates. Only the rate has no fixed width."""


@pytest.fixture(scope="module", params=[80, 140])
def screens(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[tuple[int, str]]:
    """What all commands leave on a terminal of this width."""
    columns: int = request.param
    existing = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=60).topics
    if TOPIC not in existing:
        Topics(cluster.bootstrap)(2, name=TOPIC, config={"retention.ms": "-1"})
        for partition in (0, 1):
            records = RECORDS[2 * partition : 2 * partition + 2]
            Produce(cluster.bootstrap)(TOPIC, records, partition=partition, timestamp_ms=AT_MS)
    # Paths are in the captures: always as long.
    with tempfile.TemporaryDirectory(prefix="penstock-", dir="/tmp") as name, spark_jvms.lent() as spark:
        folder, environment = Path(name), {**spark, "KAFKA_BROKERS": cluster.bootstrap}
        (folder / "job.yaml").write_text(JOB)
        (folder / "broken.yaml").write_text(BROKEN)
        write_penstock(folder / "bin")
        forked.start()
        penstock = str(folder / "bin" / "penstock")
        shown = (
            f"$ penstock {' '.join(command)}\n{screen([penstock, *command], columns, folder, environment)}"
            for command in COMMANDS
        )
        yield columns, "\n".join(shown)


def test_screens_are_as_captured(screens: tuple[int, str]) -> None:
    columns, text = screens
    for pattern, fixed in VARYING:
        text = re.sub(pattern, fixed, text, flags=re.MULTILINE)
    path = GOLDEN / f"{columns}.txt"
    if os.environ.get("PENSTOCK_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
