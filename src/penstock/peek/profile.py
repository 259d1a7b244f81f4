"""What a sample shows: rates, formats, keys, headers and fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from itertools import groupby
from typing import Any

import pyarrow as pa

from penstock.job.kafka_types import utf8
from penstock.job.schema import job_type_name, type_at
from penstock.peek.fields import FieldProfile, field_profiles, inferred_schema
from penstock.peek.formats import Content, content_of
from penstock.peek.sample import Record, Sample

SHARE_OF_ALL = 0.99
"""A field of so many records is taken to be in all of them."""


class Profile:
    """What a sample shows."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.contents: list[Content] = [content_of(record.value) for record in sample.records]
        self.formats = Counter(content.label for content in self.contents)
        self.objects: list[tuple[Record, Any]] = [
            (record, content.data)
            for record, content in zip(sample.records, self.contents, strict=True)
            if isinstance(content.data, dict) and content.schema_id is None
        ]
        self.fields = field_profiles(value for _, value in self.objects)
        self.keys = FieldProfile(("key",))
        self.headers: dict[str, FieldProfile] = {}
        for number, record in enumerate(sample.records):
            if record.key is not None:
                self.keys.add(shown(record.key), number)
            for name, value in record.headers:
                self.headers.setdefault(name, FieldProfile((name,))).add(shown(value or b""), number)

    # rates

    @property
    def count(self) -> int:
        return len(self.sample.records)

    @cached_property
    def times_ms(self) -> tuple[int, int] | None:
        """The earliest and the latest Kafka timestamp of the sample."""
        times = [record.at_ms for record in self.sample.records if record.at_ms is not None]
        return (min(times), max(times)) if times else None

    @cached_property
    def records_per_second(self) -> float | None:
        """Offsets per second, from the first to the last sampled record of each partition."""
        rates: list[float] = []
        for _, group in groupby(self.sample.records, key=lambda record: record.partition):
            timed = [(record.offset, record.at_ms) for record in group if record.at_ms is not None]
            if timed and timed[-1][1] > timed[0][1]:
                rates.append(1000 * (timed[-1][0] - timed[0][0]) / (timed[-1][1] - timed[0][1]))
        return sum(rates) if rates else None

    @property
    def sizes(self) -> list[int]:
        """The sizes of the values, ascending."""
        return sorted(len(record.value) for record in self.sample.records if record.value is not None)

    @property
    def bytes_per_second(self) -> float | None:
        """Keys and values, uncompressed."""
        rate = self.records_per_second
        size_bytes = sum(record.size_bytes for record in self.sample.records)
        return None if rate is None else rate * size_bytes / self.count

    # fields

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that the JSON records show."""
        return inferred_schema((value for _, value in self.objects), self.fields)

    def share(self, profile: FieldProfile) -> float:
        """The share of JSON records that have the field."""
        return profile.present / max(1, len(self.objects))

    def type_name(self, profile: FieldProfile) -> str:
        """The type as a job file states it; empty if the field has none."""
        kind = type_at(self.schema, profile.path)
        if kind is None or pa.types.is_null(kind):
            return ""
        return "struct" if pa.types.is_struct(kind) else job_type_name(kind)

    def subset(self, records: Iterable[Record]) -> Profile:
        """The profile of some of the records."""
        return Profile(Sample(self.sample.topic, self.sample.bounds, tuple(records)))


def shown(value: bytes) -> str:
    """Bytes as text, or in hex if they are none."""
    text = utf8(value)
    return value.hex() if text is None or not text.isprintable() else text


def percent(share: float) -> str:
    """A share that is 100 % only if it is all, and 0 % only if it is nothing."""
    if 0 < share < 1:
        share = min(max(share, 0.001), 0.999)
    return f"{100 * share:.1f}".removesuffix(".0") + " %"
