"""Sample data: a topic of web requests, some of them bad, and one of metrics; the same for the same seed."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

_METHODS = ("GET", "GET", "GET", "POST", "PUT", "DELETE")
_STATUSES = (200, 200, 200, 200, 201, 204, 301, 404, 500)
_PATHS = ("home", "cart", "search", "account/orders", "products/1842", "api/v2/sessions", "static/app.js")
_FIRST_DAY = datetime(2026, 3, 1, tzinfo=UTC)
_FLUSH_SECONDS_MAX = 120.0
_REQUEST_SECONDS_MAX = 30.0
_BY_KEY = -1
"""Instead of a partition number: librdkafka chooses the partition by the hash of the key."""

BAD_VALUES: tuple[tuple[str, bytes], ...] = (
    ("truncated JSON", b'{"method": "GET", "status": 200, "url": "https://shop.exa'),
    ("a text in an integer column", b'{"method": "GET", "status": "teapot", "url": "https://shop.example/tea"}'),
    ("not UTF-8", b'{"method": "GET", "url": "https://shop.example/\xff\xfe"}'),
    ("an integer beyond 64 bits", b'{"method": "GET", "status": 99999999999999999999999}'),
    ("empty value", b""),
)


@dataclass(frozen=True, slots=True)
class SampleSize:
    """The size of a sample; every `bad_every`th record is one of `BAD_VALUES`, 0 means none."""

    records: int
    days: int = 3
    bad_every: int = 0
    seed: int = 20260301

    @property
    def bad_records(self) -> int:
        return self.records // self.bad_every if self.bad_every else 0


def web_requests(sample: SampleSize) -> Iterator[bytes]:
    """The values, in order."""
    rng = random.Random(sample.seed)
    step = timedelta(days=sample.days) / max(sample.records, 1)
    for number in range(sample.records):
        if sample.bad_every and (number + 1) % sample.bad_every == 0:
            yield BAD_VALUES[(number // sample.bad_every) % len(BAD_VALUES)][1]
        else:
            yield _request(rng, _FIRST_DAY + number * step)


def _request(rng: random.Random, at: datetime) -> bytes:
    session, unique = (uuid.UUID(int=rng.getrandbits(128), version=4) for _ in range(2))
    return (
        f'{{"meta": {{"producer": {{"timestamp": "{at.isoformat(timespec="microseconds")}"}}}}, '
        f'"method": "{rng.choice(_METHODS)}", "session_id": "{session}", "status": {rng.choice(_STATUSES)}, '
        f'"url": "https://shop.example/{rng.choice(_PATHS)}", "uuid": "{unique}"}}'
    ).encode()


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": "2"})


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    admin = _admin(bootstrap)
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(_REQUEST_SECONDS_MAX)


def produce_lines(
    bootstrap: str,
    topic: str,
    lines: Iterable[tuple[bytes | None, bytes]],
    partitions: int,
    headers: Sequence[tuple[str, bytes]] = (),
) -> None:
    """Send keys and values to a topic, which is created with that number of partitions if it is missing."""
    topics = _admin(bootstrap).list_topics(timeout=_REQUEST_SECONDS_MAX).topics
    if topic not in topics:
        create_topic(bootstrap, topic, partitions)
    count = len(topics[topic].partitions) if topic in topics else partitions
    turns = ((key, value, _BY_KEY if key is not None else turn % count) for turn, (key, value) in enumerate(lines))
    _produce(bootstrap, topic, turns, headers)


def produce_values(bootstrap: str, topic: str, values: Iterable[bytes], partitions: int) -> None:
    """Spread values over the partitions in turn and wait until the broker has all of them."""
    _produce(bootstrap, topic, ((None, value, number % partitions) for number, value in enumerate(values)))


def produce_keyed(bootstrap: str, topic: str, records: Iterable[tuple[bytes, bytes]]) -> None:
    """Send keys and values, equal keys to one partition, and wait until the broker has all of them."""
    _produce(bootstrap, topic, ((key, value, _BY_KEY) for key, value in records))


def _produce(
    bootstrap: str,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes, int]],
    headers: Sequence[tuple[str, bytes]] = (),
) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            # Records that were not sent are an error; a coordinator that is just starting is not worth a line.
            "log_level": "2",
            "enable.idempotence": "true",
            "linger.ms": "50",
            "batch.size": "1000000",
            "queue.buffering.max.messages": "200000",
            "compression.type": "lz4",
        }
    )
    for number, (key, value, partition) in enumerate(records):
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=[*headers])
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    unsent = producer.flush(_FLUSH_SECONDS_MAX)
    if unsent:
        raise TimeoutError(f"{unsent} records did not reach the broker within {_FLUSH_SECONDS_MAX} s")


JOB_FILE = """\
job: web-requests
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}], start: earliest}}
decode: json
schema:
  meta: {{producer: {{timestamp: string}}}}
  method: string
  session_id: string
  status: int
  url: string
  uuid: string
columns: {{date: day(meta.producer.timestamp)}}
table:
  delta: {{path: {table}, partition_by: [date]}}
flush: {{allowed_latency: 60s, {sizes}, max_messages_per_batch: 100000}}
on: {{bad_record: quarantine, bad_share: {bad_share}, gap: fail, new_column: add}}
"""


def job_file(
    bootstrap: str, topic: str, table: str, sizes: str = "min_bytes_per_file: 128MiB", bad_share: str = "0.1"
) -> str:
    """The text of a job file for the sample topic."""
    path = json.dumps(table)
    return JOB_FILE.format(bootstrap=bootstrap, topic=topic, table=path, sizes=sizes, bad_share=bad_share)


WINDOWS = ("1m", "10m", "1h", "24h")
_CENTRES = ("eu", "us", "ap")
_METRIC_FIELDS = ("usage_idle", "usage_system", "usage_user")
_METRIC_STEPS = 6400
_MARKER_SECONDS = 3 * 86_400


@dataclass(frozen=True, slots=True)
class MetricSample:
    """Hosts report in turn, as Telegraf writes it: three values each, every ten seconds from `start` on."""

    records: int
    hosts: int = 5_334
    start: int = 1_700_000_400
    """The time of the first record, in seconds since 1970."""
    seed: int = 20260301

    @property
    def series(self) -> int:
        return self.hosts * len(_METRIC_FIELDS)

    @property
    def points(self) -> int:
        """The values in all records."""
        return self.records * len(_METRIC_FIELDS)

    def at(self, number: int) -> int:
        """The time of a record."""
        return self.start + number // self.hosts * 10


def metric_records(sample: MetricSample) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values, in order of time. The key is the host.

    Values are multiples of 1/64, so that sums are exact in any order.
    """
    rng = random.Random(sample.seed)
    for number in range(sample.records):
        host = number % sample.hosts
        fields = ",".join(f'"{name}":{rng.randrange(_METRIC_STEPS) / 64}' for name in _METRIC_FIELDS)
        tags = f'"dc":"{_CENTRES[host % len(_CENTRES)]}","host":"host-{host:05}"'
        value = f'{{"fields":{{{fields}}},"name":"cpu","tags":{{{tags}}},"timestamp":{sample.at(number)}}}'
        yield f"host-{host:05}".encode(), value.encode()


def end_markers(sample: MetricSample, count: int) -> list[bytes]:
    """Values to send after all others, one to each partition: so far ahead that all windows before them close."""
    at = sample.at(sample.records) + _MARKER_SECONDS
    return [f'{{"fields":{{"reached":1}},"name":"end","tags":{{}},"timestamp":{at}}}'.encode()] * count


ROLLUP_JOB = """\
job: rollups
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}
decode: telegraf
table:
  rollup: {{path: "{path}", windows: [{windows}], lateness: 2m, update_grace: {update_grace}}}
{more}"""


def rollup_job(bootstrap: str, topic: str, path: str, update_grace: str = "0s", more: str = "") -> str:
    """The text of a job file that rolls such a topic up; `more` are further sections."""
    values = {"bootstrap": bootstrap, "topic": topic, "path": path, "update_grace": update_grace, "more": more}
    return ROLLUP_JOB.format(windows=", ".join(WINDOWS), **values)
