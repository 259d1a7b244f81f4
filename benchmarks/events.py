"""Sample data for exports: one topic that mixes event types with schemas of their own, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

_NAMES = (
    *("fs", "gc", "heap", "container", "spark_stage", "spark_stage_state", "spark_executor", "spark_task"),
    *("spark_storage", "spark_rdd", "application", "container_state", "flink_manager", "flink_job"),
    *("flink_task_manager", "flink_task", "flink_operator", "flink_consumer"),
)
_FIRST_DAY = datetime(2026, 3, 1, tzinfo=UTC)
_USERS = ("ana", "bo", "chandra", "dmitri", "eve")


def type_names(count: int) -> tuple[str, ...]:
    """The first names; beyond the known ones they are numbered."""
    return tuple(_NAMES[number] if number < len(_NAMES) else f"event_{number}" for number in range(count))


def type_schema(name: str) -> dict[str, str]:
    """The fields of a type as in a job file: six that all types share, and four of its own."""
    shared = dict.fromkeys(("type", "at", "host", "user", "application"), "string") | {"pid": "int"}
    own = {f"{name}_count": "long", f"{name}_ratio": "double", f"{name}_state": "string", f"{name}_ok": "boolean"}
    return shared | own


def events(records: int, types: int) -> Iterator[bytes]:
    """The values, in order: events of so many types over three days, a tenth of them out of order by hours."""
    rng = random.Random(20260301)
    names = type_names(types)
    step = timedelta(days=3) / max(records, 1)
    for number in range(records):
        late = timedelta(hours=rng.randrange(6)) if rng.randrange(10) == 0 else timedelta()
        at = max(_FIRST_DAY, _FIRST_DAY + number * step - late)
        name = names[rng.randrange(len(names))]
        yield _event(rng, name, at)


def _event(rng: random.Random, name: str, at: datetime) -> bytes:
    return (
        f'{{"type": "{name}", "at": "{at.isoformat(timespec="milliseconds")}", '
        f'"host": "worker-{rng.randrange(400)}", '
        f'"user": "{rng.choice(_USERS)}", "application": "application_1557_{rng.randrange(100000):06}", '
        f'"pid": {rng.randrange(65536)}, "{name}_count": {rng.randrange(10**9)}, '
        f'"{name}_ratio": {rng.random():.6f}, "{name}_state": "state-{rng.randrange(8)}", '
        f'"{name}_ok": {"true" if rng.random() < 0.9 else "false"}}}'
    ).encode()


EXPORT_JOB = """\
job: events
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}
decode: json
route: {{by: field(type)}}
event_time: at
types:
{types}
table:
  export: {{path: "{root}", format: {format}}}
{more}"""


def export_job(bootstrap: str, topic: str, root: str, types: int = 18, format: str = "parquet", more: str = "") -> str:
    """The text of a job file that exports such a topic; `more` are further sections."""
    schemas = "\n".join(
        f"  {name}: {{schema: {{{', '.join(f'{field}: {kind}' for field, kind in type_schema(name).items())}}}}}"
        for name in type_names(types)
    )
    return EXPORT_JOB.format(bootstrap=bootstrap, topic=topic, types=schemas, root=root, format=format, more=more)
