"""Sample data for rollups: a topic of metrics as Telegraf writes them, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

WINDOWS = ("1m", "10m", "1h", "24h")
_FIELDS = ("usage_idle", "usage_system", "usage_user", "usage_iowait", "usage_irq", "usage_nice", "usage_softirq")
_CENTRES = ("eu", "us", "ap")
_TEXTS_MAX = 65_536
"""At most so many different texts of fields are made, once, and then drawn from."""
_STEPS_PER_UNIT = 64
_UNITS = 100
_DAY_SECONDS = 86_400
_MARKER_DAYS = 3


@dataclass(frozen=True, slots=True)
class MetricSample:
    """How much of what: hosts report in turn, each with `fields` values, every `interval_seconds` from `start` on.

    A series is a field of a host; the last host has fewer fields if `series` is not a multiple of `fields`.
    """

    records: int
    series: int = 16_000
    fields: int = 3
    interval_seconds: int = 10
    start: int = 1_700_000_400
    """The time of the first record, in seconds since 1970."""
    seed: int = 20260301

    @property
    def hosts(self) -> int:
        return -(-self.series // self.fields)

    @property
    def fields_of_last_host(self) -> int:
        return self.series - (self.hosts - 1) * self.fields

    @property
    def points(self) -> int:
        """The values in all records."""
        of_last_host = self.records // self.hosts
        return (self.records - of_last_host) * self.fields + of_last_host * self.fields_of_last_host

    @property
    def end(self) -> int:
        """The time of the last record."""
        return self.start + (max(self.records, 1) - 1) // self.hosts * self.interval_seconds


def metric_records(sample: MetricSample) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values, in order of time. The key is the host.

    Values are multiples of 1/64, so that sums are exact in any order.
    """
    rng = random.Random(sample.seed)
    hosts = [f"host-{number:05}" for number in range(sample.hosts)]
    keys = [host.encode() for host in hosts]
    tails = [
        f',"name":"cpu","tags":{{"dc":"{_CENTRES[number % len(_CENTRES)]}","host":"{host}"}},"timestamp":'.encode()
        for number, host in enumerate(hosts)
    ]
    texts = min(sample.records, _TEXTS_MAX)
    heads, heads_of_last_host = (_heads(rng, count, texts) for count in (sample.fields, sample.fields_of_last_host))
    for turn, left in enumerate(range(sample.records, 0, -sample.hosts)):
        ending = f"{sample.start + turn * sample.interval_seconds}}}".encode()
        drawn = [*rng.choices(heads, k=sample.hosts - 1), rng.choice(heads_of_last_host)]
        for key, head, tail in islice(zip(keys, drawn, tails, strict=True), left):
            yield key, head + tail + ending


def _heads(rng: random.Random, fields: int, count: int) -> Sequence[bytes]:
    """The beginnings of `count` records."""
    names = sorted(_FIELDS[number] if number < len(_FIELDS) else f"usage_{number}" for number in range(fields))
    texts = (",".join(f'"{name}":{_value(rng)}' for name in names) for _ in range(count))
    return [f'{{"fields":{{{text}}}'.encode() for text in texts]


def _value(rng: random.Random) -> str:
    return f"{rng.randrange(_UNITS * _STEPS_PER_UNIT) / _STEPS_PER_UNIT:.6f}".rstrip("0").rstrip(".")


def end_markers(sample: MetricSample, count: int) -> list[bytes]:
    """Values to send after all others, one to each partition: so far ahead that all windows before them close."""
    at = sample.end + _MARKER_DAYS * _DAY_SECONDS
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
    windows = ", ".join(WINDOWS)
    return ROLLUP_JOB.format(
        bootstrap=bootstrap, topic=topic, path=path, windows=windows, update_grace=update_grace, more=more
    )
