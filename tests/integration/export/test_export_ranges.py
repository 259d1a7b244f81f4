"""Two exporters on one hot partition: ranges are written side by side and land in order (RULES M5)."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import replace

from penstock.claims.group import open_group
from penstock.engine.loop import Loop, Retries
from penstock.engine.round import open_rounds
from penstock.environment import Environment
from penstock.job.spec import kafka_of
from penstock.verify import verify
from penstock.watch.status import status
from tests.exports import ExportPipe, event
from tests.kafka import Produce, Topics
from tests.pipes import Recorder, wait_until

RECORDS = 6_000
FLUSH = "allowed_latency: 100ms, min_bytes_per_file: 1B, max_messages_per_batch: 400, max_bytes_per_batch: 1B"


class Exporter:
    """One process of the job, in a thread of the test."""

    def __init__(self, export: ExportPipe, client: str) -> None:
        job = export.job
        assert job.claims is not None
        self.heard = Recorder()
        self.stop = threading.Event()
        claims = open_group(kafka_of(job), replace(job.claims, client_id=client), self.heard.event)
        loop = Loop(
            lambda: open_rounds(job, export.spark, Environment(listener=self.heard), claims),
            False,
            self.stop,
            Retries(10, random.Random(1)),
            self.heard,
        )

        def run() -> None:
            try:
                loop.run()
            finally:
                claims.close()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def ranges_landed(self) -> int:
        return sum(bool(each["ours"]) for each in self.heard.named("range finished"))


def test_two_exporters_share_a_hot_partition_range_by_range_and_every_record_is_filed_once(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    claims = f"claims: {{mode: group, heartbeat: 1s, topic: {name}_claims}}\n"
    export.describe(name, kafka=f"group: {name}", flush=FLUSH, more=claims)
    one, two = Exporter(export, "one"), Exporter(export, "two")
    try:
        for each in (one, two):
            wait_until(lambda each=each: bool(each.heard.named("group joined")))  # type: ignore[misc]
        produce(name, [event("ABC"[number % 3], number, day=number % 2) for number in range(RECORDS)])
        wait_until(lambda: export.global_positions() == [RECORDS], 300.0, lambda: str(one.heard.events[-5:]))
        wait_until(lambda: [each.mirrored for each in status(export.job).partitions] == [RECORDS])
    finally:
        for each in (one, two):
            each.stop.set()
        for each in (one, two):
            each.thread.join(180)
    assert one.ranges_landed() and two.ranges_landed()
    assert export.everywhere() == Counter((0, number) for number in range(RECORDS))
    assert verify(export.job).ok
