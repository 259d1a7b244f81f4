"""The text of a job file from a profile: what all kinds of table have in common. Each kind adds its own sections."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.columns.computed import output_type
from penstock.flow.decode.decoder import decoder_for
from penstock.flow.rows import in_parts
from penstock.job.expressions import Call, Expression, KafkaField, to_text
from penstock.job.faults import Secret, printable
from penstock.job.kafka_types import PLACE, RAW_SCHEMA, RECORD_SCHEMA
from penstock.job.schema import job_type_name
from penstock.job.spec import DecodeSpec, KafkaLogSpec, Payload, Policies
from penstock.peek.candidates import event_times
from penstock.peek.fields import ITEM, Path
from penstock.peek.profile import SHARE_OF_ALL, Profile, percent
from penstock.peek.sample import Record

EXAMPLES_CHARACTERS_MAX = 60
BAD_SHARE_DEFAULT = Policies().bad_share
REASONS_SHOWN_MAX = 3
OTHER_KIND = "draft another kind of table with --as"
_PLAIN = re.compile(r"(?:[A-Za-z_]|\./)[A-Za-z0-9_./-]*")
_PLAIN_EXPRESSION = re.compile(r"[A-Za-z_][A-Za-z0-9_.(), -]*")
_NOT_TEXT = frozenset(("true", "false", "null"))


@dataclass(frozen=True, slots=True)
class Sections:
    """What a kind of table states: lines of YAML, and the records of the sample that such a job would refuse."""

    decode: str
    table: Sequence[str]
    """The lines below `table:`."""
    rows: Sequence[str] = ()
    """The lines between `decode` and `table`."""
    policies: Mapping[str, str] = field(default_factory=dict)
    bad: Counter[str] = field(default_factory=Counter)
    """The number of records by reason."""


def job_text(profile: Profile, log: KafkaLogSpec, bootstrap: str, sections: Sections) -> str:
    """The whole job file; `bootstrap` is written as it is, and secrets of the client as references."""
    sample, times = profile.sample, profile.times_ms
    span = "" if times is None else f", {_minute(times[0])} to {_minute(times[1])}"
    topic = sample.topic
    lines = [
        f"# Drafted by `penstock init {topic}` from {profile.count:,} records of {sample.offsets:,} offsets{span}.",
        "# A question mark is where the sample leaves room for doubt.",
        f"job: {job_name(topic)}",
        "log:",
        f"  kafka: {{bootstrap: {quoted(bootstrap)}, topics: [{quoted(topic)}]{_client(log)}}}",
        commented(f"decode: {sections.decode}", formats(profile)),
        *sections.rows,
        "table:",
        *sections.table,
    ]
    policies, why = dict(sections.policies), ""
    share = sections.bad.total() / max(1, profile.count)
    if share > BAD_SHARE_DEFAULT / 2:
        # With room for a batch that has more than the sample.
        policies["bad_share"] = f"{min(1.0, share * 1.5 + 0.1):.1f}"
    if sections.bad:
        reasons = ", ".join(f"{count:,} x {reason}" for reason, count in sections.bad.most_common(REASONS_SHOWN_MAX))
        why = f"? {percent(share)} of the sample would go to quarantine: {reasons}"
    if policies:
        lines.append(commented(f"on: {{{', '.join(f'{name}: {value}' for name, value in policies.items())}}}", why))
    elif why:
        lines.append(f"# {printable(why)}")
    return "\n".join(lines) + "\n"


def job_name(topic: str) -> str:
    return re.sub(r"[^a-z0-9.-]+", "-", topic.lower()).lstrip(".-")[:64] or "job"


def table_path(profile: Profile) -> str:
    return quoted(f"./lake/{profile.sample.topic}")


def _client(log: KafkaLogSpec) -> str:
    references = {name: f"${{env:{variable}}}" for name, variable in secret_variables(log).items()}
    settings = {name: references.get(name, value.replace("${", "$${")) for name, value in log.client_settings.items()}
    texts = (f"{quoted(name)}: {quoted(value)}" for name, value in settings.items())
    return f", client: {{{', '.join(texts)}}}" if settings else ""


# decoding


def decode_spec(profile: Profile) -> DecodeSpec:
    """JSON if at least half of the records are meant to be, otherwise raw bytes."""
    values = [content for content in profile.contents if content.format not in ("tombstone", "empty")]
    packed = sum(content.payload == "gzip" for content in values)
    payload: Payload = "gzip" if 2 * packed > len(values) else "plain"
    objects = sum(isinstance(content.data, dict) and content.schema_id is None for content in values)
    meant = objects + sum(content.format == "broken JSON" for content in values)
    return DecodeSpec("json" if objects and 2 * meant >= len(values) else "raw", payload)


def decode_text(decode: DecodeSpec) -> str:
    return decode.format if decode.payload == "plain" else f"{{format: {decode.format}, payload: {decode.payload}}}"


def formats(profile: Profile) -> str:
    """The formats of the sample, and what a person may want to do about them."""
    if not profile.count:
        return "? the topic is empty: raw keeps bytes, draft again once there are records"
    text = ", ".join(f"{label} {percent(count / profile.count)}" for label, count in profile.formats.most_common(4))
    names = {content.format for content in profile.contents}
    if "Protobuf" in names:
        text += "; with descriptors and message, decode: protobuf gives columns"
    return text + ("; Avro cannot be decoded" if "Avro" in names else "")


def bad_records(records: Iterable[Record], decode: DecodeSpec, schema: pa.Schema) -> Counter[str]:
    """How many records cannot be rows of the schema, by reason."""
    decoder = decoder_for(decode, schema, Policies())
    batch = record_batch(records)
    return Counter(reason for part in in_parts(decoder.decode, batch) for reason in part.bad.errors.to_pylist())


def record_batch(records: Iterable[Record]) -> pa.RecordBatch:
    """Records as tasks get them."""
    rows = [
        {
            "topic": "",
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": None if record.at_ms is None else record.at_ms * 1000,
            "key": record.key,
            "value": record.value,
        }
        for record in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA)


# fields and columns


def refuse_names(profile: Profile, names: Iterable[str], reserved: Iterable[str]) -> None:
    """Raise `UserError` if records have fields that this kind of table keeps for itself."""
    used = sorted(name for name in names if name.casefold() in reserved)
    if used:
        raise UserError(f"{profile.sample.topic} has fields with reserved names: {', '.join(used)}", hint=OTHER_KIND)


def row_schema(profile: Profile, decode: DecodeSpec) -> pa.Schema:
    """The decoded fields. Raises `UserError` if JSON records show none."""
    if decode.format == "raw":
        return RAW_SCHEMA
    if not len(profile.schema):
        raise UserError(f"no field of {profile.sample.topic} has a value in the sample", hint="read more: -n 10000")
    return profile.schema


def schema_lines(profile: Profile, decode: DecodeSpec) -> list[str]:
    """The section `schema`, with what each field showed."""
    if decode.format == "raw":
        return []
    names = [path[0] for path in profile.fields if len(path) == 1]
    left_out = [name for name in names if name not in profile.schema.names]
    notes = [
        f"# ? no column for {printable(quoted(name))}: no values, or not the name of a column" for name in left_out
    ]
    return ["schema:", *field_lines(profile, profile.schema, (), "  "), *(f"  {note}" for note in notes)]


def field_lines(profile: Profile, fields: Iterable[pa.Field], above: Path, indent: str) -> Iterator[str]:
    """A line for each field with its type and what was seen; structs have their fields below them."""
    for item in fields:
        path = (*above, item.name)
        if pa.types.is_struct(item.type):
            yield commented(f"{indent}{quoted(item.name)}:", _evidence(profile, path))
            yield from field_lines(profile, list(item.type), path, f"{indent}  ")
        else:
            yield commented(f"{indent}{quoted(item.name)}: {type_text(item.type)}", _evidence(profile, path))


def type_text(kind: pa.DataType) -> str:
    """A type inside a line of YAML."""
    if pa.types.is_struct(kind):
        return f"{{{', '.join(f'{quoted(child.name)}: {type_text(child.type)}' for child in kind)}}}"
    if pa.types.is_list(kind):
        return f"[{type_text(kind.value_type)}]"
    name = job_type_name(kind)
    return name if name.isalnum() else quoted(name)


def _evidence(profile: Profile, path: Path) -> str:
    """What the comment next to a field says: shares of kinds and records, then examples."""
    item = profile.fields.get(path)
    if item is None:
        return ""
    parts: list[str] = []
    shares = item.kinds.most_common()
    if len(shares) > 1:
        others = ", ".join(f"{kind} in {percent(count / item.kinds.total())}" for kind, count in shares[1:])
        parts.append(f"? {others} of its values")
    elif profile.share(item) < SHARE_OF_ALL:
        parts.append(f"in {percent(profile.share(item))} of records")
    times = item.text_types["time"]
    if 0 < times < item.kinds["text"]:
        parts.append(f"? a time in {percent(times / item.kinds['text'])} of its values")
    if pa.types.is_decimal(item.text_type):
        parts.append("? text that is always a number")
    if isinstance(item.time, Call):
        parts.append(f"a time: {to_text(item.time)}")
    if ITEM not in path and item.examples and len(parts) < 2:
        examples = ", ".join(item.examples)
        short = item.examples[0] if len(examples) > EXAMPLES_CHARACTERS_MAX else examples
        parts.append(f"such as {short}" if len(item.distinct) > len(item.examples) or short != examples else examples)
    return "; ".join(parts)


def place_lines(names: Iterable[str]) -> Iterator[str]:
    """Columns for the place of a record whose usual names are fields of the records."""
    used = {name.casefold() for name in names}
    for part, name in PLACE.items():
        if name in used:
            yield f"  {free_name((f'record_{part}',), used)}: kafka.{part}"


def day_column(profile: Profile, schema: pa.Schema) -> tuple[str, str]:
    """The name of the column that partitions a table by day of event time, and its line."""
    name = free_name(("date", "event_date", "day", "event_day"), schema.names)
    expression: Expression = KafkaField("timestamp")
    why = "? no field is the event time: the Kafka timestamp"
    times = [item for item in event_times(profile) if _is_column(item.expression, schema)]
    if times:
        time = times[0]
        expression, why = time.expression, time.reason
        others = ", ".join(item.text for item in times[1:])
        why = f"? {why}; or {others}" if others else why
        if time.share < SHARE_OF_ALL:
            why = f"? {why}; null in the other records"
    return name, commented(f"  {name}: {expression_text(f'day({to_text(expression)})')}", why)


def _is_column(expression: Expression, schema: pa.Schema) -> bool:
    try:
        output_type(expression, schema)
    except UserError:
        return False
    return True


def free_name(names: Iterable[str], taken: Iterable[str]) -> str:
    """The first of the names that no column has."""
    used = {name.casefold() for name in (*taken, *PLACE.values())}
    tried = list(names)
    return next(name for name in (*tried, *(f"{tried[0]}_{number}" for number in range(2, 100))) if name not in used)


# text


def commented(line: str, comment: str) -> str:
    return f"{line}  # {printable(comment)}" if comment else line


def quoted(text: str) -> str:
    """A text as a key or value of YAML, inside braces too."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT
    return text if plain else json.dumps(text, ensure_ascii=not text.isprintable())


def expression_text(text: str) -> str:
    """An expression as a value of YAML, not inside braces."""
    return text if _PLAIN_EXPRESSION.fullmatch(text) else json.dumps(text, ensure_ascii=not text.isprintable())


def secret_variables(log: KafkaLogSpec) -> dict[str, str]:
    """The settings of the client that are secrets, with environment variables for them: `KAFKA_SASL_PASSWORD`."""
    secrets = [name for name, value in log.client_settings.items() if isinstance(value, Secret)]
    return {name: "KAFKA_" + re.sub(r"[^A-Z0-9]+", "_", name.upper()) for name in secrets}


def _minute(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M}"
