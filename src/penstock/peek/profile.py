"""What a sample shows: formats, keys, headers and fields, and which fields can be event time, key and type."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from statistics import median
from typing import Any

import pyarrow as pa

from penstock.flow.columns.times import timestamp_micros
from penstock.job.expressions import Call, Expression, Field, KafkaField, to_text
from penstock.job.kafka_types import utf8
from penstock.job.schema import job_type_name, type_at
from penstock.peek.fields import (
    EPOCHS,
    ITEM,
    FieldProfile,
    Path,
    field_profiles,
    inferred_schema,
    value_at,
)
from penstock.peek.formats import Content, content_of
from penstock.peek.sample import Record, Sample

SHARE_OF_ALL = 0.99
"""A field of so many records is taken to be in all of them."""
SHARE_OF_MOST = 0.5
TYPES_MAX = 50
CANDIDATES_MAX = 3
_TIME_NAME = re.compile(r"@?(event_?)?(at|ts|time|timestamp|datetime)(_?(s|ms|us|millis|micros|utc))?", re.IGNORECASE)
_TIME_PART = re.compile(r"_(at|on|ts|time|date|timestamp)\b|created|[a-z](At|Time|Date|Timestamp)\b", re.IGNORECASE)
_KEY_NAME = re.compile(r"(.*[_-])?(id|key|uuid|guid)|.*[a-z](Id|ID|Key|Uuid)", re.IGNORECASE)
_TYPE_NAME = re.compile(r"(.*[_-])?(type|kind|event|action|name|schema)|.*[a-z](Type|Kind|Name)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A field that can be event time, key or type, as a job file states it, and why."""

    expression: Expression
    share: float
    """Of the records that have it."""
    reason: str

    @property
    def text(self) -> str:
        return to_text(self.expression)


@dataclass(frozen=True, slots=True)
class TypeCandidate:
    """What tells the types of a mixed topic apart, as `route.by` states it, and the records of each value."""

    by: str
    values: Counter[str]
    reason: str
    is_named: bool
    value_of: Callable[[Record, Any], str | None]


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
            timed = [record for record in group if record.at_ms is not None]
            seconds = (timed[-1].at_ms - timed[0].at_ms) / 1000 if timed else 0  # type: ignore[operator]
            if seconds > 0:
                rates.append((timed[-1].offset - timed[0].offset) / seconds)
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

    def subset(self, chosen: list[tuple[Record, Any]]) -> Profile:
        """The profile of some of the records."""
        places = {(record.partition, record.offset) for record, _ in chosen}
        records = tuple(r for r in self.sample.records if (r.partition, r.offset) in places)
        return Profile(Sample(self.sample.topic, self.sample.bounds, records))

    # candidates

    @cached_property
    def event_times(self) -> list[Candidate]:
        """Fields with times, the likeliest first: in all records, named like one, close to the Kafka timestamp."""
        ranked: list[tuple[tuple[bool, int, float], Candidate]] = []
        for profile in self.fields.values():
            expression, share = profile.time, self.share(profile)
            if expression is None or share < SHARE_OF_MOST or ITEM in profile.path:
                continue
            name = profile.path[-1]
            rank = 0 if _TIME_NAME.fullmatch(name) else 1 if _TIME_PART.search(name) else 2
            is_date = pa.types.is_date(profile.text_type)
            if rank == 2 and isinstance(expression, Call) and expression.function == "timestamp_seconds":
                # Any number of ten digits looks like one.
                continue
            distance = self._seconds_from_kafka(profile.path, expression)
            apart = "" if distance is None else f", about {_span(distance)} from the Kafka timestamp"
            candidate = Candidate(expression, share, f"in {percent(share)} of records{apart}")
            ranked.append(((share < SHARE_OF_ALL, rank + is_date, distance or 0.0), candidate))
        return [candidate for _, candidate in sorted(ranked, key=lambda item: item[0])[:CANDIDATES_MAX]]

    def _seconds_from_kafka(self, path: Path, expression: Expression) -> float | None:
        micros = EPOCHS[expression.function] if isinstance(expression, Call) else None
        distances = [
            abs((value * micros if micros else timestamp_micros(value)) / 1e6 - record.at_ms / 1e3)
            for record, item in self.objects
            if (value := value_at(item, path)) is not None and record.at_ms is not None
        ]
        return median(distances) if distances else None

    @cached_property
    def key_candidates(self) -> list[Candidate]:
        """What can identify a row: fields that equal the Kafka key, the Kafka key itself, fields named like a key."""
        equal: list[Candidate] = []
        named: list[tuple[tuple[bool, int], Candidate]] = []
        for profile in self.fields.values():
            share = self.share(profile)
            if share < SHARE_OF_ALL or ITEM in profile.path or not {*profile.kinds} <= {"text", "number"}:
                continue
            values = [(record, value_at(item, profile.path)) for record, item in self.objects]
            same = sum(record.key is not None and shown(record.key) == str(value) for record, value in values)
            if same >= SHARE_OF_ALL * len(values):
                equal.append(Candidate(Field(profile.path), share, "equals the Kafka key"))
            elif _KEY_NAME.fullmatch(profile.path[-1]):
                distinct = len(profile.distinct)
                reason = f"{distinct:,} different values in {profile.present:,} records"
                rank = profile.path[-1].lower() != "id", -distinct
                named.append((rank, Candidate(Field(profile.path), share, reason)))
        share = self.keys.present / max(1, self.count)
        own = [Candidate(KafkaField("key"), share, f"in {percent(share)} of records")] if share >= SHARE_OF_ALL else []
        return [*equal, *own, *(candidate for _, candidate in sorted(named, key=lambda item: item[0]))][:CANDIDATES_MAX]

    @cached_property
    def type_candidates(self) -> list[TypeCandidate]:
        """Fields and headers with few values that decide which other fields a record has."""
        shapes: dict[int, frozenset[Path]] = {}
        for number, (_, item) in enumerate(self.objects):
            shapes[number] = frozenset(field_profiles([item]))
        ranked: list[tuple[tuple[bool, int], TypeCandidate]] = []
        for by, name, profile, value_of in self._routes():
            share = profile.present / max(1, len(self.objects))
            is_few = 2 <= len(profile.distinct) <= min(TYPES_MAX, len(self.objects) // 2)
            if share < SHARE_OF_ALL or not is_few or {*profile.kinds} != {"text"}:
                continue
            groups: dict[Hashable, Counter[frozenset[Path]]] = {}
            for number, (record, item) in enumerate(self.objects):
                groups.setdefault(value_of(record, item), Counter())[shapes[number]] += 1
            own = _own_fields(groups)
            if own:
                values = Counter({str(value): shapes_of.total() for value, shapes_of in groups.items() if value})
                is_named = _TYPE_NAME.fullmatch(name) is not None
                reason = f"{len(values)} values, which decide about {len(own)} fields"
                ranked.append(((not is_named, -len(own)), TypeCandidate(by, values, reason, is_named, value_of)))
        return [candidate for _, candidate in sorted(ranked, key=lambda item: item[0])[:CANDIDATES_MAX]]

    def _routes(self) -> Iterator[tuple[str, str, FieldProfile, Callable[[Record, Any], Any]]]:
        """What `route.by` can name: headers and fields, each with how its value is found."""
        for name, profile in self.headers.items():
            yield f"header({name})", name, profile, partial(_header, name)
        for path, profile in self.fields.items():
            if ITEM not in path:
                yield f"field({to_text(Field(path))})", path[-1], profile, partial(_member, path)

    def as_json(self) -> Mapping[str, Any]:
        sizes, times = self.sizes, self.times_ms
        return {
            "topic": self.sample.topic,
            "partitions": [
                {"partition": partition.number, "first": bounds.first, "end": bounds.end}
                for partition, bounds in sorted(self.sample.bounds.items())
            ],
            "offsets": self.sample.offsets,
            "sampled": self.count,
            "timestamps_ms": times,
            "records_per_second": self.records_per_second,
            "bytes_per_second": self.bytes_per_second,
            "value_bytes": {"least": sizes[0], "median": median(sizes), "most": sizes[-1]} if sizes else None,
            "formats": dict(self.formats.most_common()),
            "keys": {"present": self.keys.present, "examples": self.keys.examples},
            "headers": {
                name: {"present": item.present, "examples": item.examples} for name, item in self.headers.items()
            },
            "fields": [
                {
                    "path": profile.name,
                    "present": profile.present,
                    "type": self.type_name(profile),
                    "kinds": dict(profile.kinds),
                    "distinct": len(profile.distinct),
                    "examples": profile.examples,
                    "range": profile.range,
                }
                for profile in self.fields.values()
            ],
            "event_time": [{"expression": item.text, "reason": item.reason} for item in self.event_times],
            "key": [{"expression": item.text, "reason": item.reason} for item in self.key_candidates],
            "type": [
                {"by": item.by, "values": dict(item.values.most_common()), "reason": item.reason}
                for item in self.type_candidates
            ],
        }


def _header(name: str, record: Record, _: Any) -> str | None:
    return utf8(dict(record.headers).get(name))


def _member(path: Path, _: Record, item: Any) -> Any:
    return value_at(item, path)


def _own_fields(groups: Mapping[Hashable, Counter[frozenset[Path]]]) -> set[Path]:
    """Fields that nearly all records of one group have, and none of another; rare groups do not count."""
    total = sum(shapes.total() for shapes in groups.values())
    always: set[Path] = set()
    seen: list[set[Path]] = []
    for shapes in groups.values():
        counts: Counter[Path] = Counter()
        for shape, count in shapes.items():
            counts.update(dict.fromkeys(shape, count))
        if shapes.total() > (1 - SHARE_OF_ALL) * total:
            always |= {path for path, count in counts.items() if count >= 0.95 * shapes.total()}
            seen.append({*counts})
    return {path for path in always if any(path not in paths for paths in seen)}


def shown(value: bytes) -> str:
    """Bytes as text, or in hex if they are none."""
    text = utf8(value)
    return value.hex() if text is None or not text.isprintable() else text


def percent(share: float) -> str:
    """A share that is 100 % only if it is all, and 0 % only if it is nothing."""
    if 0 < share < 1:
        share = min(max(share, 0.001), 0.999)
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def _span(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
