"""Kafka's own `kafka-consumer-groups` shows what the mirror wrote."""

from __future__ import annotations

import os
import subprocess

from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.kafka.mirror import mirror
from penstock.spark.jars import JarSet, java_command, resolve
from tests.support.kafka import Produce, Topics

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def test_kafka_consumer_groups_shows_position_end_and_lag(bootstrap: str, topic: Topics, produce: Produce) -> None:
    name = topic(partitions=1)
    produce(name, [b"x"] * 10, partition=0)
    log = KafkaLog(KafkaLogSpec(bootstrap, topics=(name,), group=f"group-of-{name}"))
    try:
        mirror(log, f"group-of-{name}", {log.partitions()[0]: 7})
    finally:
        log.close()
    shown = subprocess.run(
        [
            str(java_command()),
            "-cp",
            os.pathsep.join(str(jar) for jar in resolve(JarSet.BROKER)),
            TOOL,
            "--bootstrap-server",
            bootstrap,
            "--describe",
            "--group",
            f"group-of-{name}",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    row = next(line.split() for line in shown.splitlines() if name in line.split())
    # GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG
    assert row[:6] == [f"group-of-{name}", name, "0", "7", "10", "3"]
