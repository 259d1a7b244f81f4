"""Fields that can be event time, key or type, the likeliest first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

import pyarrow as pa

from penstock.flow.columns.times import timestamp_micros
from penstock.job.expressions import Call, Expression, Field, KafkaField, to_text
from penstock.job.kafka_types import utf8
from penstock.peek.fields import EPOCHS, ITEM, FieldProfile, Path, field_profiles, value_at
from penstock.peek.profile import SHARE_OF_ALL, Profile, percent, shown

SHARE_OF_MOST = 0.5
TYPES_MAX = 50
CANDIDATES_MAX = 3
_TIME_NAME = re.compile(r"@?(event_?)?(at|ts|time|timestamp|datetime)(_?(s|ms|us|millis|micros|utc))?", re.IGNORECASE)
_TIME_PART = re.compile(r"_(at|on|ts|time|date|timestamp)\b|created|[a-z](At|Time|Date|Timestamp)\b", re.IGNORECASE)
_KEY_NAME = re.compile(r"(.*[_-])?(id|key|uuid|guid)|.*[a-z](Id|ID|Key|Uuid)", re.IGNORECASE)
_TYPE_NAME = re.compile(r"(.*[_-])?(type|kind|event|action|name|schema)|.*[a-z](Type|Kind|Name)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What can be event time or key, as a job file states it, and why."""

    expression: Expression
    share: float
    """Of the records that have it."""
    reason: str

    @property
    def text(self) -> str:
        return to_text(self.expression)


@dataclass(frozen=True, slots=True)
class TypeCandidate:
    """What tells the types of a mixed topic apart, as `route.by` states it, and the type of each JSON record."""

    by: str
    is_named: bool
    """Whether it has the name of a type."""
    types: tuple[str | None, ...]
    decides: int
    """The number of fields that some types have and others do not."""

    @property
    def values(self) -> Counter[str]:
        return Counter(value for value in self.types if value is not None)

    @property
    def reason(self) -> str:
        return f"{len(self.values)} values, which decide about {self.decides} fields"


def event_times(profile: Profile) -> list[Candidate]:
    """Times in most records: first those in all of them, named like an event time, close to the Kafka timestamp."""
    ranked: list[tuple[tuple[bool, int, float], Candidate]] = []
    for item in profile.fields.values():
        expression, share, name = item.time, profile.share(item), item.path[-1]
        rank = 0 if _TIME_NAME.fullmatch(name) else 1 if _TIME_PART.search(name) else 2
        if expression is None or share < SHARE_OF_MOST or ITEM in item.path:
            continue
        if rank == 2 and isinstance(expression, Call) and expression.function == "timestamp_seconds":
            # Any number of ten digits looks like one.
            continue
        distance = _seconds_from_kafka(profile, item.path, expression)
        apart = "" if distance is None else f", about {_span(distance)} from the Kafka timestamp"
        candidate = Candidate(expression, share, f"in {percent(share)} of records{apart}")
        ranked.append(((share < SHARE_OF_ALL, rank + pa.types.is_date(item.text_type), distance or 0.0), candidate))
    return [candidate for _, candidate in sorted(ranked, key=lambda item: item[0])[:CANDIDATES_MAX]]


def _seconds_from_kafka(profile: Profile, path: Path, expression: Expression) -> float | None:
    micros = EPOCHS[expression.function] if isinstance(expression, Call) else None
    distances = [
        abs((value * micros if micros else timestamp_micros(value)) / 1e6 - record.at_ms / 1e3)
        for record, item in profile.objects
        if (value := value_at(item, path)) is not None and record.at_ms is not None
    ]
    return median(distances) if distances else None


def keys(profile: Profile) -> list[Candidate]:
    """What can identify a row: fields that equal the Kafka key, the Kafka key itself, fields named like a key."""
    equal: list[Candidate] = []
    named: list[tuple[tuple[bool, int], Candidate]] = []
    for item in profile.fields.values():
        share, name, distinct = profile.share(item), item.path[-1], len(item.distinct)
        if share < SHARE_OF_ALL or ITEM in item.path or not {*item.kinds} <= {"text", "number"}:
            continue
        same = sum(
            record.key is not None and shown(record.key) == str(value_at(value, item.path))
            for record, value in profile.objects
        )
        if same >= SHARE_OF_ALL * len(profile.objects):
            equal.append(Candidate(Field(item.path), share, "equals the Kafka key"))
        elif _KEY_NAME.fullmatch(name):
            reason = f"{distinct:,} different values in {item.present:,} records"
            named.append(((name.lower() != "id", -distinct), Candidate(Field(item.path), share, reason)))
    share = profile.keys.present / max(1, profile.count)
    own = [Candidate(KafkaField("key"), share, f"in {percent(share)} of records")] if share >= SHARE_OF_ALL else []
    return [*equal, *own, *(candidate for _, candidate in sorted(named, key=lambda item: item[0]))][:CANDIDATES_MAX]


def types(profile: Profile) -> list[TypeCandidate]:
    """Headers and fields with few values that decide which other fields a record has."""
    shapes = [frozenset(field_profiles([value])) for _, value in profile.objects]
    found: list[TypeCandidate] = []
    for by, name, item, values in _routes(profile):
        is_few = 2 <= len(item.distinct) <= min(TYPES_MAX, len(shapes) // 2)
        if not is_few or {*item.kinds} != {"text"} or item.present < SHARE_OF_ALL * len(shapes):
            continue
        of_records = tuple(values)
        groups: dict[str | None, Counter[frozenset[Path]]] = {}
        for value, shape in zip(of_records, shapes, strict=True):
            groups.setdefault(value, Counter())[shape] += 1
        if decides := _deciding(groups):
            found.append(TypeCandidate(by, _TYPE_NAME.fullmatch(name) is not None, of_records, decides))
    return sorted(found, key=lambda candidate: (not candidate.is_named, -candidate.decides))[:CANDIDATES_MAX]


def _routes(profile: Profile) -> Iterator[tuple[str, str, FieldProfile, Iterator[str | None]]]:
    """What `route.by` can name, with its values in the JSON records."""
    for name, item in profile.headers.items():
        yield f"header({name})", name, item, (utf8(dict(record.headers).get(name)) for record, _ in profile.objects)
    for path, item in profile.fields.items():
        if ITEM not in path:
            yield (
                f"field({to_text(Field(path))})",
                path[-1],
                item,
                (value_at(value, path) for _, value in profile.objects),
            )


def _deciding(groups: Mapping[str | None, Counter[frozenset[Path]]]) -> int:
    """The number of fields that nearly all records of one group have, and none of another; rare groups do not count."""
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
    return sum(any(path not in paths for paths in seen) for path in always)


def _span(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
