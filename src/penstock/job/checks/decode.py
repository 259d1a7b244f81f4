"""How bytes become fields: `decode` against its own format, its descriptor set, and the schema of a single table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from penstock.errors import UserError
from penstock.job.document import Document
from penstock.job.faults import Finding, KeyPath, RefusedError, shown
from penstock.job.kafka_types import RAW_SCHEMA
from penstock.job.messages import MAKE_DESCRIPTORS, files_of, message_schema
from penstock.job.schema import parse_schema
from penstock.job.sections.kind_section import AnyKindSection, Kinds
from penstock.job.sections.models import BlacklistSection, DecodeSection, JobFile
from penstock.job.sections.section import stated
from penstock.job.spec import (
    POINT_FORMATS,
    BlacklistEntry,
    DecodeFormat,
    DecodeSpec,
    MessageName,
    MetricNames,
    PointsSpec,
    Secret,
    TombstonePolicy,
)

AT: KeyPath = ("decode",)
POINT_KEYS = ("timestamps", "names", "non_numeric", "non_finite", "blacklist")
_KEYS_OF_ROWS = ("schema", "columns", "drop", "sql")
DESCRIPTORS_BYTES_MAX = 16 * 1024 * 1024
"""The set travels to every task."""

_OWN_KEYS: dict[DecodeFormat, tuple[str, ...]] = {
    "json": (),
    "raw": (),
    "protobuf": ("descriptors", "message", "defaults"),
    "garmadon": ("descriptors", "header", "defaults", "uri_names"),
    "telegraf": POINT_KEYS,
    "influx": POINT_KEYS,
}
_REQUIRED_KEYS: dict[DecodeFormat, tuple[str, ...]] = {
    "protobuf": ("descriptors",),
    "garmadon": ("descriptors", "header"),
}


def read_decode(
    file: JobFile, document: Document, folder: Path, kind: AnyKindSection, kinds: Kinds
) -> tuple[DecodeSpec | None, list[Finding]]:
    """The decoder as far as it can be told, with the descriptor set as bytes; empty where that cannot be read."""
    section = file.decode
    if section is None or section.format is None:
        return None, []
    findings = [*_key_findings(section.format, document), *_point_findings(file, document, kind, kinds)]
    if not kind.many_types:
        elsewhere = next((each.many_types for each in kinds if each.many_types), "")
        findings += _one_type_findings(section, document, elsewhere)
    descriptors = b""
    if section.descriptors is not None and "descriptors" in _OWN_KEYS[section.format]:
        try:
            descriptors = _descriptors(section.descriptors, folder)
        except RefusedError as fault:
            findings.append(Finding((*AT, "descriptors"), str(fault), fault.hint))
    spec = replace(
        DecodeSpec(section.format, descriptors=descriptors, message=section.message, header=section.header),
        **stated(
            payload=section.payload,
            defaults=section.defaults,
            uri_names=section.uri_names,
            points=_points_spec(section),
            payload_bytes_max=file.limits.payload_bytes if file.limits is not None else None,
        ),
    )
    return spec, findings


def read_schema(file: JobFile, document: Document, decode: DecodeSpec | None) -> tuple[pa.Schema | None, list[Finding]]:
    """The decoded fields of a job with a single table."""
    at: KeyPath = ("schema",)
    match decode.format if decode is not None else None:
        case "raw":
            message = "contradicts decode: raw, whose one field is value (binary)"
            return RAW_SCHEMA, [Finding(at, message, on_key=True)] if document.has(*at) else []
        case "protobuf" | "garmadon":
            assert decode is not None
            findings = [contradiction(at, decode.format)] if document.has(*at) else []
            if decode.format == "garmadon" or not decode.descriptors or decode.message is None:
                return None, findings
            name = decode.message
            read = partial(message_schema, decode.descriptors, name)
            schema, further = try_schema(read, name, (*AT, "message"))
            return schema, findings + further
        case "telegraf" | "influx":
            # Refused already: a table of rows cannot hold what they give.
            return None, []
    if file.schema_ is not None:
        return parse_schema(file.schema_, at)
    if decode is not None and not document.has(*at):
        return None, [Finding(at, "required key is missing: decode json needs the fields and their types")]
    return None, []


def try_schema(
    read: Callable[[], pa.Schema], message: MessageName, at: KeyPath
) -> tuple[pa.Schema | None, list[Finding]]:
    """The schema of a message, or why it has none."""
    try:
        return read(), []
    except UserError as error:
        if isinstance(message.name, Secret):
            return None, [Finding(at, "is no message that a table can hold once its references are filled in")]
        text = f"{error.primary}: {error.detail}" if error.detail else error.primary
        return None, [Finding(at, text, error.hint)]


def contradiction(at: KeyPath, format_stated: str) -> Finding:
    """A schema beside messages that have one."""
    return Finding(at, f"contradicts decode {format_stated}: the message is the schema", "remove it", on_key=True)


def _key_findings(format_stated: DecodeFormat, document: Document) -> Iterator[Finding]:
    for name in dict.fromkeys(key for keys in _OWN_KEYS.values() for key in keys):
        if document.has(*AT, name) and name not in _OWN_KEYS[format_stated]:
            yield Finding((*AT, name), f"has no meaning with decode {format_stated}", "remove it", on_key=True)
    for name in _REQUIRED_KEYS.get(format_stated, ()):
        if not document.has(*AT, name):
            yield Finding((*AT, name), f"required key is missing: decode {format_stated} needs it")


def _one_type_findings(section: DecodeSection, document: Document, hint: str) -> Iterator[Finding]:
    if section.format == "garmadon":
        place = (*AT, "format") if document.has(*AT, "format") else AT
        yield Finding(place, "garmadon records are of many types", hint)
    if section.format == "protobuf" and not document.has(*AT, "message"):
        yield Finding((*AT, "message"), "required key is missing: the table's rows are of one message")


def _descriptors(path: str, folder: Path) -> bytes:
    """The bytes of a descriptor set. Raises `RefusedError`, which never names the file: it may be a secret."""
    try:
        with (folder / path).open("rb") as file:
            content = file.read(DESCRIPTORS_BYTES_MAX + 1)
    except FileNotFoundError:
        raise RefusedError("there is no such file", "a relative path begins at the job file's folder") from None
    except (OSError, ValueError) as error:
        raise RefusedError(f"cannot be read: {getattr(error, 'strerror', None) or 'not a file name'}") from None
    if len(content) > DESCRIPTORS_BYTES_MAX:
        raise RefusedError("larger than 16 MiB: too large to travel to every task", MAKE_DESCRIPTORS)
    try:
        files_of(content)
    except UserError as error:
        raise RefusedError("is no descriptor set", error.hint) from None
    return content


def _points_spec(section: DecodeSection) -> PointsSpec:
    """What the section states about points."""
    entries = [BlacklistEntry(each.name or "", each.tags or {}) for each in section.blacklist or ()]
    own = {name: getattr(section, name) for name in POINT_KEYS}
    names = section.names and replace(MetricNames(), **stated(style=section.names.style, case=section.names.case))
    return replace(PointsSpec(), **stated(**{**own, "names": names, "blacklist": tuple(entries) or None}))


def _point_findings(file: JobFile, document: Document, kind: AnyKindSection, kinds: Kinds) -> Iterator[Finding]:
    """What is wrong with points: a table that takes none, or only them, and what stands beside them."""
    section = file.decode
    assert section and section.format
    gives_points = section.format in POINT_FORMATS
    if gives_points != kind.takes_points and document.has("table", kind.name):
        yield _mismatch(section.format, document, kind, kinds)
    for index, entry in enumerate(section.blacklist or ()):
        yield from _entry_findings(entry, (*AT, "blacklist", index))
    if gives_points and kind.takes_points:
        for name in _KEYS_OF_ROWS:
            if document.has(name):
                yield Finding((name,), f"has no meaning with decode {section.format}", "remove it", on_key=True)
        if file.on is not None and file.on.tombstone is TombstonePolicy.ROW:
            message = f"row has no meaning with decode {section.format}: a tombstone has no points"
            yield Finding(("on", "tombstone"), message, "use filter or quarantine")


def _mismatch(format_stated: str, document: Document, kind: AnyKindSection, kinds: Kinds) -> Finding:
    place = (*AT, "format") if document.has(*AT, "format") else AT
    if kind.takes_points:
        message = f"{format_stated} records are rows, and table.{kind.name} takes points of metrics"
        return Finding(place, message, f"use {' or '.join(POINT_FORMATS)}")
    takers = [f"table.{each.name}" for each in kinds if each.takes_points]
    message = f"{format_stated} records are points of metrics, and table.{kind.name} takes rows"
    return Finding(place, message, f"{' or '.join(takers)} takes points" if takers else "")


def _entry_findings(entry: BlacklistSection, at: KeyPath) -> Iterator[Finding]:
    if entry.name is None and not entry.tags:
        yield Finding(at, "matches every series", "state a name, tags, or both")
    if entry.name is not None:
        yield from _pattern_findings(entry.name, (*at, "name"))
    for key, value in (entry.tags or {}).items():
        yield from _pattern_findings(key, (*at, "tags", key), on_key=True)
        yield from _pattern_findings(value, (*at, "tags", key))


def _pattern_findings(pattern: str, at: KeyPath, *, on_key: bool = False) -> Iterator[Finding]:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        hint = "" if isinstance(pattern, Secret) else str(error)
        yield Finding(at, f"{shown(pattern)} is no regular expression", hint, on_key=on_key)
