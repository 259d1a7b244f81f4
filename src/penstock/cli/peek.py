"""`penstock peek`: what is in a topic."""

from __future__ import annotations

import base64
import json as json_text
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from penstock.cli.tables import Json, cell, parsed, table
from penstock.errors import UserError
from penstock.job.conditions import read_condition
from penstock.job.faults import InvalidValueError, printable
from penstock.job.kafka_types import utf8
from penstock.job.spec import KafkaLogSpec
from penstock.job.texts import TOPIC_NAME, servers
from penstock.job.values import secret_settings
from penstock.peek import sample as peek_sample
from penstock.peek.candidates import event_times, keys, types
from penstock.peek.fields import FieldProfile
from penstock.peek.matching import matches
from penstock.peek.profile import Profile, percent, shown
from penstock.peek.sample import Record, TopicReader

BROKERS_NAME = "KAFKA_BROKERS"
SAMPLE_RECORDS = 1_000
SAMPLE_RECORDS_MAX = 100_000
HEADERS_SHOWN_MAX = 10
EXAMPLES_CHARACTERS_MAX = 60
WIDTH_IN_FILES = 120

Topic = Annotated[str, typer.Argument(help="The topic.")]
Bootstrap = Annotated[str, typer.Option(envvar=BROKERS_NAME, help="The brokers, host:port.", show_default=False)]
Client = Annotated[list[str] | None, typer.Option("-X", metavar="KEY=VALUE", help="A librdkafka setting.")]
Count = Annotated[int | None, typer.Option("-n", min=1, max=SAMPLE_RECORDS_MAX, help="Number of records.")]


def peek(
    topic: Topic,
    count: Count = None,
    start: Annotated[
        str | None,
        typer.Option("-o", metavar="START", help="earliest, latest, an offset, a time, or how long ago (2h)."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print records as they arrive.")] = False,
    condition: Annotated[
        str | None, typer.Option("--filter", metavar="CONDITION", help="Only records such as status >= 500.")
    ] = None,
    bootstrap: Bootstrap = "",
    client: Client = None,
    json: Json = False,
) -> None:
    """Show what is in a topic: rates, formats, keys, headers, fields, and what can be event time, key and type.

    Reads a sample of 1,000 records from all partitions and times, or with -o those that follow there. Joins no consumer
    group and writes nothing.
    """
    chosen = None if start is None else peek_sample.parse_start(start)
    wanted = None if condition is None else parsed("--filter", condition, read_condition)

    def is_wanted(record: Record) -> bool:
        return wanted is None or matches(wanted, topic, record)

    with TopicReader(kafka_spec(topic, bootstrap, client)) as reader:
        if follow:
            print_records(islice(filter(is_wanted, reader.follow("latest" if chosen is None else chosen)), count), json)
            return
        profile = sampled(reader, chosen, count or SAMPLE_RECORDS)
    if wanted is not None:
        profile = profile.subset(filter(is_wanted, profile.sample.records))
    if json:
        typer.echo(json_text.dumps(_profile_as_json(profile), default=str))
    else:
        _print(profile)


def kafka_spec(topic: str, bootstrap: str, client: list[str] | None) -> KafkaLogSpec:
    """The log of one topic; raises `UserError` for options that cannot be used."""
    if not bootstrap:
        raise UserError("no broker is named", hint=f"add --bootstrap host:9092, or set {BROKERS_NAME}")
    # What fails a call is in its error.
    logging.getLogger("penstock.kafka").setLevel(logging.ERROR)
    settings = dict(item.partition("=")[::2] for item in client or [])
    for option, read, value in (("--bootstrap", servers, bootstrap), ("TOPIC", TOPIC_NAME.read, topic)):
        try:
            read(value)
        except InvalidValueError as error:
            raise UserError(f"{option}: {error.message}", hint=error.hint) from None
    return KafkaLogSpec(bootstrap, topics=(topic,), client_settings=secret_settings(settings))


def sampled(reader: TopicReader, start: peek_sample.Start | None, count: int) -> Profile:
    """The profile of a sample, with a progress bar on a terminal."""
    with _progress(count) as progress:
        return Profile(reader.sample(start, count, progress))


@contextmanager
def _progress(count: int) -> Iterator[peek_sample.Progress]:
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TextColumn("records"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=count)
        yield lambda records: bar.update(task, completed=records)


def _print(profile: Profile) -> None:
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=WIDTH_IN_FILES)
    sample, sizes, times = profile.sample, profile.sizes, profile.times_ms
    partitions = "1 partition" if len(sample.bounds) == 1 else f"{len(sample.bounds)} partitions"
    heading = f"  {partitions}  {sample.offsets:,} offsets, {profile.count:,} records read"
    console.print(Text.assemble((sample.topic, "bold"), heading), soft_wrap=True)
    lines: list[tuple[str, str]] = []
    if times is not None:
        lines.append(("time", f"{_instant(times[0])} to {_instant(times[1])}"))
    if profile.records_per_second is not None and profile.bytes_per_second is not None:
        lines.append(
            ("rate", f"about {_number(profile.records_per_second)} records/s, {_size(profile.bytes_per_second)}/s")
        )
    if sizes:
        lines.append(("size", f"{_size(sizes[0])} to {_size(sizes[-1])}, median {_size(sizes[len(sizes) // 2])}"))
    lines += [("format", text) for text in _formats(profile)]
    if profile.count:
        lines.append(("key", _presence(profile.keys, profile.count)))
    for name, header in list(profile.headers.items())[:HEADERS_SHOWN_MAX]:
        lines.append(("header", f"{printable(name)} {_presence(header, profile.count)}"))
    for name, line in lines:
        console.print(Text(f"{name:<8}{line}"))
    if profile.fields:
        console.print()
        rows = [
            (printable(item.name), percent(profile.share(item)), cell(profile.type_name(item) or None), _values(item))
            for item in profile.fields.values()
            if {*item.kinds} != {"object"}
        ]
        console.print(table(("field", "in", "type", "values"), rows, left=(0, 2, 3)))
        console.print()
    for name, candidates in (("event time", event_times(profile)), ("key", keys(profile))):
        for candidate in candidates:
            console.print(Text(f"{name:<12}{printable(candidate.text)}: {candidate.reason}"))
    for route in types(profile):
        values = ", ".join(f"{printable(value)} {count:,}" for value, count in route.values.most_common(5))
        console.print(Text(f"{'type':<12}{printable(route.by)}: {route.reason}: {values}"))
    console.print(Text(f"next: penstock init {sample.topic}"), soft_wrap=True)


def _profile_as_json(profile: Profile) -> Any:
    sizes = profile.sizes
    return {
        "topic": profile.sample.topic,
        "partitions": [
            {"partition": partition.number, "first": bounds.first, "end": bounds.end}
            for partition, bounds in sorted(profile.sample.bounds.items())
        ],
        "offsets": profile.sample.offsets,
        "sampled": profile.count,
        "timestamps_ms": profile.times_ms,
        "records_per_second": profile.records_per_second,
        "bytes_per_second": profile.bytes_per_second,
        "value_bytes": {"least": sizes[0], "median": sizes[len(sizes) // 2], "most": sizes[-1]} if sizes else None,
        "formats": dict(profile.formats.most_common()),
        "keys": {"present": profile.keys.present, "examples": profile.keys.examples},
        "headers": {
            name: {"present": item.present, "examples": item.examples} for name, item in profile.headers.items()
        },
        "fields": [
            {
                "path": field.name,
                "present": field.present,
                "type": profile.type_name(field),
                "kinds": dict(field.kinds),
                "distinct": len(field.distinct),
                "examples": field.examples,
                "range": field.range,
            }
            for field in profile.fields.values()
        ],
        "event_time": [{"expression": item.text, "reason": item.reason} for item in event_times(profile)],
        "key": [{"expression": item.text, "reason": item.reason} for item in keys(profile)],
        "type": [
            {"by": item.by, "values": dict(item.values.most_common()), "reason": item.reason} for item in types(profile)
        ],
    }


def _formats(profile: Profile) -> Iterator[str]:
    """Each format with its share, and an example of those that have no fields."""
    for label, count in profile.formats.most_common():
        example = ""
        for record, content in zip(profile.sample.records, profile.contents, strict=True):
            if content.label == label and not isinstance(content.data, dict) and record.value:
                example = f"  such as {shown(record.value)[:60]}"
                break
        yield f"{label} {percent(count / profile.count)}{example}"


def _presence(profile: FieldProfile, count: int) -> str:
    if not profile.present:
        return "none"
    more = ", ..." if len(profile.distinct) > len(profile.examples) else ""
    share = percent(profile.present / count)
    return f"in {share} of records, {len(profile.distinct):,} different: {printable(', '.join(profile.examples))}{more}"


def _values(profile: FieldProfile) -> str:
    """The range of numbers and times, otherwise examples; and shares, if values are of several kinds."""
    least, most = profile.range
    if least is not None:
        text = f"{least} to {most}"
    else:
        examples = (
            profile.examples if len("".join(profile.examples)) < EXAMPLES_CHARACTERS_MAX else profile.examples[:1]
        )
        text = ", ".join(examples)
        if len(profile.distinct) > len(examples):
            text += f", ... ({len(profile.distinct):,} different)"
    if len(profile.kinds) > 1:
        kinds = profile.kinds.most_common()
        text += f"  {', '.join(f'{kind} {percent(count / profile.kinds.total())}' for kind, count in kinds)}"
    return printable(text)


def print_records(records: Iterable[Record], json: bool) -> None:
    for record in records:
        print(_as_json(record) if json else _as_line(record), flush=True)


def _as_line(record: Record) -> str:
    key = "-" if record.key is None else printable(shown(record.key))
    value = "null" if record.value is None else printable(shown(record.value))
    at = "-" if record.at_ms is None else _instant(record.at_ms)
    return f"{record.partition}/{record.offset}  {at}  {key}  {value}"


def _as_json(record: Record) -> str:
    content = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": None if record.at_ms is None else _instant(record.at_ms),
        "key": _bytes(record.key),
        "value": _bytes(record.value),
        "headers": [{"key": name, "value": _bytes(value)} for name, value in record.headers],
    }
    return json_text.dumps(content)


def _bytes(content: bytes | None) -> Any:
    """Bytes as `{"text": ...}`, or as `{"base64": ...}` where they are not UTF-8."""
    if content is None:
        return None
    text = utf8(content)
    return {"text": text} if text is not None else {"base64": base64.b64encode(content).decode()}


def _instant(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:-6] + "Z"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _size(size_bytes: float) -> str:
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= length:
            return f"{size_bytes / length:.1f} {unit}"
    return f"{_number(size_bytes)} B" if size_bytes else "0 B"
