"""A rollup for fault tests: points in stages of event time, and the expected rows of the table and the topic.

All values are multiples of a half: every sum of them is exact, in any order.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from tests.support.kafka import Produce
from tests.support.metric_windows import Aggregate, Window, expected_windows
from tests.support.published import read_topic

START = 1_700_006_400
"""The start of a day."""
STAGE_SECONDS = 120
LATENESS_SECONDS = 10
HOSTS = 20
SECONDS = {"1m": 60, "10m": 600, "24h": 86_400}
NAME = "rollups"

JOB = """\
job: rollups
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}], group: {topic}}}
decode: telegraf
table:
  rollup:
    path: '{folder}/windows'
    windows: [1m, 10m, 24h]
    lateness: {lateness}s
    idle_after: 1h
    update_grace: 1h
    late: {late}
    publish: {{topic: {output}, format: opentsdb, buckets: {buckets}, positions_topic: {output}_positions}}
flush: {{allowed_latency: 100ms}}
on: {{bad_record: quarantine, bad_share: 1}}
limits: {{transient_retries: {retries}, shutdown: 30s}}
spark: {{conf: {{spark.driver.memory: 512m}}}}
claims: {claims}
"""


@dataclass(slots=True)
class Rollup:
    """A job over a topic, which is published to another one, and everything that was produced for it."""

    folder: Path
    bootstrap: str
    topic: str
    output: str
    partitions: int
    late: str = "drop"
    retries: int = 10
    claims: str = "{heartbeat: 1s}"
    """With the default of 10 s each process would wait 20 s for the claims of the one that was killed before it."""
    stages: list[list[bytes]] = field(default_factory=list)
    """The good records of each stage."""
    bad: int = 0
    until: int = START
    """Windows that end at or before it can be closed, once everything is read."""

    def job(self, name: str = "job", claims: str | None = None) -> Path:
        path = self.folder / f"{name}.yaml"
        text = JOB.format(
            bootstrap=self.bootstrap,
            topic=self.topic,
            folder=self.folder,
            lateness=LATENESS_SECONDS,
            late=self.late,
            output=self.output,
            buckets=self.partitions,
            retries=self.retries,
            claims=claims or self.claims,
        )
        path.write_text(text)
        return path

    def shared_job(self, client_id: str) -> Path:
        """The job file of one process among several."""
        return self.job(client_id, f"{{client_id: {client_id}, heartbeat: 2s, topic: {self.topic}_claims}}")

    def feed(self, late: bool = False, skipped_seconds: int = 0) -> None:
        """Two minutes of points of every series in every partition; event time then has passed them everywhere.

        With `late` some points belong to the two minutes before. `skipped_seconds` is a silence before the stage.
        """
        start = self.until + skipped_seconds
        self.until = start + STAGE_SECONDS
        number, records = len(self.stages), list[bytes]()
        for partition in range(self.partitions):
            # In the order of event time, so that no record is late, however many are read first.
            sent = [_point(host, start + host, number + host / 2) for host in range(HOSTS)]
            sent += [_point(host, start + 60 + host, partition + 0.5) for host in range(HOSTS)]
            if late:
                sent += [_point(host, start - STAGE_SECONDS + host, 100.0 + partition) for host in range(5)]
            sent.append(_point("clock", self.until + LATENESS_SECONDS, 1.0))
            Produce(self.bootstrap)(self.topic, [*sent[:-1], b"no metric", sent[-1]], partition)
            records += sent
            self.bad += 1
        self.stages.append(records)

    @property
    def points(self) -> int:
        return sum(map(len, self.stages))

    def expected(self, stages: int | None = None) -> dict[Window, Aggregate]:
        """The windows that can be closed, from the points of the first stages."""
        records = [record for stage in self.stages[:stages] for record in stage]
        windows = expected_windows(records, SECONDS)
        return {key: values for key, values in windows.items() if key.start + SECONDS[key.interval] <= self.until}

    def closed(self) -> dict[Window, tuple[Aggregate, int]]:
        """The rows of the table with their revisions; each window occurs once."""
        result: dict[Window, tuple[Aggregate, int]] = {}
        for row in pl.read_delta(str(self.folder / "windows")).to_dicts():
            tags = tuple(sorted(row["tags"].items()))
            window = Window(row["metric"], tags, row["interval"], int(row["window_start"].timestamp()))
            assert window not in result, f"{window} is there twice"
            values = Aggregate(row["count"], row["sum"], row["min"], row["max"])
            result[window] = (values, row["revision"])
        return result

    def published(self) -> dict[Window, list[Aggregate]]:
        """The committed records of each window, in order."""
        result = defaultdict[Window, list[Aggregate]](list)
        for record in read_topic(self.bootstrap, self.output, committed=True):
            parts = {load["aggregator"]: load for load in json.loads(record.value)}
            one = parts["SUM"]
            window = Window(one["metric"], tuple(sorted(one["tags"].items())), one["interval"], one["timestamp"])
            count, *others = (parts[name]["value"] for name in ("COUNT", "SUM", "MIN", "MAX"))
            result[window].append(Aggregate(count, *others))
        return dict(result)

    def done(self) -> bool:
        """Whether everything that can be closed is closed and published."""
        if not DeltaTable.is_deltatable(str(self.folder / "windows")):
            return False
        table = DeltaTable(str(self.folder / "windows"))
        closed = table.transaction_version(f"{NAME}#closed")
        published = [table.transaction_version(f"{NAME}#published/{number}") for number in range(self.partitions)]
        until = (table.transaction_version(f"{NAME}#closed_until") or 0) / 1000
        return until >= self.until and all(item == closed for item in published)

    def assert_right_and_published(self) -> None:
        """Check that windows have all points, and that the topic has each window once per revision, in order."""
        closed = self.closed()
        assert {window: values for window, (values, _) in closed.items()} == self.expected()
        published = self.published()
        assert {window: len(item) for window, item in published.items()} == {
            window: revision + 1 for window, (_, revision) in closed.items()
        }
        assert {window: revisions[-1] for window, revisions in published.items()} == self.expected()
        self._assert_revisions_follow_the_stages(published)

    def _assert_revisions_follow_the_stages(self, published: dict[Window, list[Aggregate]]) -> None:
        """Check that each revision has the values of whole stages: records of a stage are committed together."""
        by_stage = [self.expected(count) for count in range(1, len(self.stages) + 1)]
        for window, revisions in published.items():
            history = [item[window] for item in by_stage if window in item]
            grown = [values for number, values in enumerate(history) if number == 0 or values != history[number - 1]]
            at = [grown.index(revision) for revision in revisions]
            assert at == sorted(set(at)), f"{window}: {revisions}"


def _point(host: object, at: int, value: float) -> bytes:
    content = {"fields": {"load": value}, "name": "cpu", "tags": {"host": f"h{host}"}, "timestamp": at}
    return json.dumps(content).encode()
