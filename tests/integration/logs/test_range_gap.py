"""Retention overtakes a partition that processes share: the gap is recorded, nobody waits for it (RULES M5)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace

from penstock.claims.group import open_group
from penstock.engine.loop import Loop, Retries
from penstock.engine.round import open_rounds
from penstock.environment import Environment
from penstock.events import Event, RangeClaimed
from penstock.job.spec import kafka_of
from tests.kafka import Produce, Topics
from tests.pipes import Pipe, Recorder, ids, wait_until

RECORDS = 2_000
SIZE = 400
FLUSH = f"allowed_latency: 100ms, min_bytes_per_file: 1B, max_messages_per_batch: {SIZE}, max_bytes_per_batch: 1B"


class Helper(Recorder):
    """A process of the job in a thread of the test; `act` is called with the start of each range that it claims."""

    def __init__(self, pipe: Pipe, client: str, act: Callable[[int], None]) -> None:
        super().__init__()
        self._act = act
        self.stop = threading.Event()
        job = pipe.job
        assert job.claims is not None
        claims = open_group(kafka_of(job), replace(job.claims, client_id=client), self.event)
        loop = Loop(
            lambda: open_rounds(job, pipe.spark, Environment(listener=self), claims),
            False,
            self.stop,
            Retries(1_000, random.Random(1)),
            self,
        )

        def run() -> None:
            try:
                loop.run()
            finally:
                claims.close()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def event(self, event: Event) -> None:
        super().event(event)
        if isinstance(event, RangeClaimed):
            self._act(event.start)


def test_m5_a_claimed_range_that_retention_overtakes_becomes_a_gap_and_the_others_go_on(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    pipe.describe(name, kafka=f"group: {name}", flush=FLUSH, on="bad_record: quarantine, gap: record")
    text = pipe.path.read_text()
    pipe.path.write_text(f"{text}claims: {{mode: group, heartbeat: 1s, topic: {name}_claims}}\n")
    cut: list[int] = []

    def overtake(start: int) -> None:
        # Once, between the claim of a range and its read: the beginning of the range is gone.
        if not cut:
            cut.append(start + SIZE // 2)
            topic.cut(name, cut[0])

    helpers = [Helper(pipe, client, overtake) for client in ("one", "two")]
    try:
        for each in helpers:
            wait_until(lambda each=each: bool(each.named("group joined")))  # type: ignore[misc]
        produce(name, ids(range(RECORDS)))
        wait_until(lambda: pipe.positions() == [RECORDS], 300.0, lambda: str(helpers[0].events[-5:]))
    finally:
        for each in helpers:
            each.stop.set()
        for each in helpers:
            each.thread.join(180)
    lost = pipe.totals().gap
    assert cut
    assert lost >= SIZE // 2
    assert pipe.column("id") == sorted(set(range(RECORDS)) - set(range(cut[0] - lost, cut[0])))
    assert pipe.verified()
