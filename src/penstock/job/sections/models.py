"""The job file as pydantic sees it: which keys there are, where, and what each may hold.

No key is required here: what is missing is reported beside everything else (`REQUIRED`), and what is wrong is cut out,
so that the rest can still be checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, PlainValidator, ValidationError, model_validator
from pydantic_core import ErrorDetails

from penstock.job import spec
from penstock.job.document import Document, Value
from penstock.job.expressions import KafkaName
from penstock.job.faults import Finding, KeyPath, RefusedError, kind_of, nearest, shown
from penstock.job.place import DEFAULT_PLACE, NO_PLACE
from penstock.job.sections.scalars import (
    Count,
    Duration,
    Flag,
    Message,
    Positive,
    Settings,
    Share,
    Size,
    Text,
    Texts,
    one_of,
    text,
)
from penstock.job.sections.section import Section, stated

ClaimsMode = Literal["static", "group"]


def _start(value: object) -> spec.StartAt | dict[str, Any]:
    """The shape only; which topics and partitions may be named depends on the other keys."""
    if isinstance(value, dict):
        return value
    words = tuple(choice.value for choice in spec.StartAt)
    if not isinstance(value, str):
        raise RefusedError(f"expected {', '.join(words)} or offsets by partition, found {kind_of(value)}")
    if value not in words:
        hint = nearest(value, words) or "for explicit offsets write {0: 1500, 1: 900}"
        raise RefusedError(f"{shown(value)} is not one of {', '.join(words)}", hint)
    return spec.StartAt(value)


def _place(value: object) -> dict[KafkaName, str]:
    """The names of the columns, those that are not stated by default; `none`: there are none."""
    if value == NO_PLACE:
        return {}
    hint = "write {topic: name, partition: name, offset: name}, or none"
    if not isinstance(value, dict):
        raise RefusedError(f"expected names of columns or none, found {kind_of(value)}", hint)
    for key in value:
        if key not in DEFAULT_PLACE:
            raise RefusedError(f"{shown(str(key))} is no part of a place", nearest(str(key), DEFAULT_PLACE) or hint)
    return {part: text(value.get(part, name)) for part, name in DEFAULT_PLACE.items()}


class TopicsSection(Section):
    """What every log states; each log adds its own keys."""

    SHARED: ClassVar[bool] = False
    """Whether the processes of a job can share its partitions: a group that is named turns that on."""

    topics: Texts = None
    topic_pattern: Text = None
    start: Annotated[spec.StartAt | dict[str, Any] | None, PlainValidator(_start)] = None
    group: Text = None


class LogChoice(Section):
    """A section for each log, of which a file states one."""


class BlacklistSection(Section):
    name: Text = None
    tags: Settings = None


class ShortSection(Section):
    """One that may be written as the value of its most important key: `decode: json`."""

    SHORT: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, value: object) -> object:
        return {cls.SHORT: value} if isinstance(value, str) else value


class NamesSection(ShortSection):
    SHORT = "style"

    style: Annotated[spec.NameStyle | None, one_of(get_args(spec.NameStyle))] = None
    case: Annotated[spec.NameCase | None, one_of(get_args(spec.NameCase))] = None


class DecodeSection(ShortSection):
    SHORT = "format"
    REQUIRED = ("format",)

    format: Annotated[spec.DecodeFormat | None, one_of(get_args(spec.DecodeFormat))] = None
    payload: Annotated[spec.Payload | None, one_of(spec.Payload)] = None
    descriptors: Text = None
    message: Message = None
    header: Message = None
    defaults: Annotated[spec.Defaults | None, one_of(get_args(spec.Defaults))] = None
    uri_names: Settings = None
    timestamps: Annotated[spec.PointTimes | None, one_of(get_args(spec.PointTimes))] = None
    names: NamesSection | None = None
    non_numeric: Annotated[spec.NonNumeric | None, one_of(get_args(spec.NonNumeric))] = None
    non_finite: Annotated[spec.NonFinite | None, one_of(get_args(spec.NonFinite))] = None
    blacklist: list[BlacklistSection] | None = None


class SqlSection(Section):
    select: Texts = None
    where: Text = None


class TableSection(Section):
    """What every kind of table states; each kind adds its own keys."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("path",)

    path: Text = None
    storage: Settings = None
    shared: Flag = None


class TableChoice(Section):
    """A section for each kind of table, of which a file states one."""


class ClaimsSection(ShortSection):
    SHORT = "mode"

    mode: Annotated[ClaimsMode | None, one_of(get_args(ClaimsMode))] = None
    client_id: Text = None
    heartbeat: Duration = None
    topic: Text = None
    partitions: Positive = None
    unit: Annotated[spec.ClaimUnit | None, one_of(get_args(spec.ClaimUnit))] = None
    max: Positive = None
    work_timeout: Duration = None


class FlushSection(Section):
    allowed_latency: Duration = None
    min_bytes_per_file: Size = None
    max_messages_per_batch: Positive = None
    max_bytes_per_batch: Size = None


class OnSection(Section):
    bad_record: Annotated[spec.BadRecordPolicy | None, one_of(spec.BadRecordPolicy)] = None
    bad_share: Share = None
    gap: Annotated[spec.GapPolicy | None, one_of(spec.GapPolicy)] = None
    recreated: Annotated[spec.RecreatedPolicy | None, one_of(spec.RecreatedPolicy)] = None
    tombstone: Annotated[spec.TombstonePolicy | None, one_of(spec.TombstonePolicy)] = None
    new_column: Annotated[spec.NewColumnPolicy | None, one_of(spec.NewColumnPolicy)] = None
    mixed_types: Annotated[spec.MixedTypesPolicy | None, one_of(spec.MixedTypesPolicy)] = None
    small_files: Annotated[spec.SmallFilesPolicy | None, one_of(spec.SmallFilesPolicy)] = None


class LimitsSection(Section):
    open_writers: Positive = None
    row_group_bytes: Size = None
    arrow_batch_bytes: Size = None
    payload_bytes: Size = None
    stage_age: Duration = None
    transient_retries: Count = None
    shutdown: Duration = None


class SparkSection(Section):
    master: Text = None
    conf: Settings = None


class JobFile(Section):
    """The sections that every job has; a kind of table that has further ones adds them in a class of its own."""

    REQUIRED = ("job", "log", "decode", "table")

    job: Text = None
    log: LogChoice | None = None
    decode: DecodeSection | None = None
    schema_: Any = Field(None, alias="schema")
    columns: dict[str, Any] | None = None
    place: Annotated[dict[KafkaName, str] | None, PlainValidator(_place)] = None
    drop: Texts = None
    sql: SqlSection | None = None
    table: TableChoice | None = None
    claims: ClaimsSection | None = None
    delivery: Annotated[spec.Delivery | None, one_of(spec.Delivery)] = None
    flush: FlushSection | None = None
    on: OnSection | None = None
    limits: LimitsSection | None = None
    spark: SparkSection | None = None

    @property
    def logs(self) -> Mapping[str, TopicsSection]:
        """The sections under `log` by the names of the logs: one in a file without a fault."""
        return stated(**dict(self.log or ()))

    @property
    def tables(self) -> Mapping[str, TableSection]:
        """The sections under `table` by the names of their kinds: one in a file without a fault."""
        return stated(**dict(self.table or ()))


def read_border(document: Document, model: type[JobFile]) -> tuple[JobFile, list[Finding]]:
    """The sections as far as they can be read, and everything that is wrong with keys and kinds of value."""
    try:
        file = model.model_validate(document.values)
        findings = []
    except ValidationError as error:
        details = error.errors(include_url=False)
        findings = [_finding(detail, document, model) for detail in details]
        file = model.model_validate(_without(document.values, [detail["loc"] for detail in details]))
    return file, findings + list(_missing(file, (), document))


def _missing(section: Section, at: KeyPath, document: Document) -> Iterator[Finding]:
    for name in section.REQUIRED:
        written_short = isinstance(section, ShortSection) and getattr(section, section.SHORT) is not None
        if not document.has(*at, name) and not written_short:
            yield Finding((*at, name), "required key is missing")
    for name in type(section).model_fields:
        inner = getattr(section, name)
        if isinstance(inner, Section):
            yield from _missing(inner, (*at, name), document)


def _finding(detail: ErrorDetails, document: Document, model: type[JobFile]) -> Finding:
    key: KeyPath = detail["loc"]
    if not document.has(*key):
        # The section is written short, as the value of this key.
        key = key[:-1]
    match detail["type"]:
        case "extra_forbidden":
            section = _section_at(model, key[:-1])
            known = [info.alias or name for name, info in section.model_fields.items()] if section else []
            name = str(key[-1])
            hint = (
                (section.REMOVED.get(name) if section else "")
                or nearest(name, known)
                or (f"known keys: {', '.join(known)}" if known else "")
            )
            return Finding(key, "unknown key", hint, on_key=True)
        case "model_type" | "dict_type":
            return Finding(key, f"expected a mapping, found {kind_of(detail['input'])}", _example(model, key))
        case "list_type":
            return Finding(key, f"expected a list, found {kind_of(detail['input'])}", "write [one, two]")
    refusal = detail.get("ctx", {}).get("error")
    if isinstance(refusal, RefusedError):
        return Finding(key, refusal.message, refusal.hint)
    return Finding(key, f"cannot be {kind_of(detail['input'])}")


def _example(model: type[Section], at: KeyPath) -> str:
    """How the shortest mapping under this path looks, if it has keys that it cannot be without."""
    section = _section_at(model, at)
    return f"write {{{', '.join(f'{name}: ...' for name in section.REQUIRED)}}}" if section and section.REQUIRED else ""


def _section_at(section: type[Section], at: KeyPath) -> type[Section] | None:
    """The section under this path."""
    parts = iter(at)
    for part in parts:
        inner, by_name = _inner_section(section, str(part))
        if inner is None:
            return None
        if by_name:
            next(parts, None)
        section = inner
    return section


def _inner_section(section: type[Section], name: str) -> tuple[type[Section] | None, bool]:
    """The section under a key, and whether there is one for each name that the file chooses."""
    info = section.model_fields.get(name)
    for kind in get_args(info.annotation) if info else ():
        for choice in (kind, *get_args(kind)):
            if isinstance(choice, type) and issubclass(choice, Section):
                return choice, choice is not kind
    return None, False


def _without(values: Mapping[str, Value], faulty: list[tuple[int | str, ...]]) -> dict[str, Value]:
    """A copy without the faulty parts; a list with a faulty item goes as a whole."""
    copy: dict[str, Value] = {}
    for name, value in values.items():
        inner = [path[1:] for path in faulty if path[0] == name]
        if isinstance(value, dict) and all(inner):
            copy[name] = _without(value, inner)
        elif not inner:
            copy[name] = value
    return copy
