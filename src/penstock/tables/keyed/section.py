"""The section `table.keyed` of a job file: keys, sequence, deletes and sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, get_args

import pyarrow as pa

from penstock.flow.columns.fitting import folded
from penstock.job.checks.columns import Output
from penstock.job.checks.single_table import read_single_table
from penstock.job.expressions import KafkaField
from penstock.job.faults import Finding, KeyPath, nearest, shown
from penstock.job.sections.kind_section import KindSection, Parts, Reading
from penstock.job.sections.models import JobFile, TableSection
from penstock.job.sections.quantities import QuantityError, parse_duration
from penstock.job.sections.scalars import Duration, Flag, Positive, Text, Texts, one_of
from penstock.job.sections.section import stated
from penstock.job.spec import TableSpec, TombstonePolicy
from penstock.tables.keyed.layout import RESERVED, DeleteRule, KeyFunction, KeyPart, Layout, is_key_type
from penstock.tables.keyed.spec import LAYOUT_PROPERTY, KeyedSpec, PartialUpdates, encode_layout

AT: KeyPath = ("table", KeyedSpec.kind)
BUCKETS_MAX = 4096
LOG_ORDER = "log"
_CALL = re.compile(r"(?P<function>[a-z]+)\(\s*(?P<column>[^,()]+?)\s*,\s*(?P<argument>.+?)\s*\)")
_DELETE = re.compile(r"(?P<column>[^=\s]+)\s*=\s*(?P<value>.+)")
_FUNCTIONS: dict[str, KeyFunction] = {each: each for each in get_args(KeyFunction) if each != "column"}
_WANTED = {"hash": "column, buckets", "prefix": "column, characters", "timeslice": "column, 30s", "round": "column, 10"}
_INPUTS = {
    "prefix": (pa.types.is_string, "text"),
    "timeslice": (pa.types.is_timestamp, "a timestamp"),
    "round": (lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind), "a number"),
}


class KeyedTableSection(TableSection):
    REQUIRED = (*TableSection.REQUIRED, "row_keys")

    partition_keys: Texts = None
    row_keys: Texts = None
    sequence: Text = None
    delete: Text = None
    partial_updates: Annotated[PartialUpdates | None, one_of(PartialUpdates)] = None
    buckets: Positive = None
    chunk_rows: Positive = None
    tombstone_retention: Duration = None
    bulk: Flag = None


class PartRefusedError(ValueError):
    """The text is no part of a key; the message says why."""


class KeyedSection(KindSection[JobFile, KeyedTableSection, Parts]):
    """One Delta table with one row for each key."""

    name = KeyedSpec.kind
    phrase = "one table with one row for each key"
    table = KeyedTableSection
    file = JobFile

    def read(self, reading: Reading[JobFile, KeyedTableSection]) -> tuple[Parts, list[Finding]]:
        parts, output, findings = read_single_table(reading)
        if reading.section is not None:
            findings += _key_findings(reading.section, output)
            findings += _setting_findings(reading.section, output)
        if reading.file.on is not None and reading.file.on.tombstone not in (None, TombstonePolicy.FILTER):
            hint = "remove it: a record without a value deletes the row of its key; or filter: it is left out"
            findings.append(Finding(("on", "tombstone"), "has no meaning for a keyed table", hint))
        return parts, findings

    def build(self, reading: Reading[JobFile, KeyedTableSection], parts: Parts, place: TableSpec) -> KeyedSpec:
        section = reading.section
        assert section is not None
        layout = layout_of(section, _log_partition(section, parts) if reading.file.sql is None else None)
        return KeyedSpec(
            place.path,
            place.storage_options,
            place.shared,
            layout=layout,
            properties={LAYOUT_PROPERTY: encode_layout(layout)},
            filter_tombstones=reading.file.on is not None and reading.file.on.tombstone is TombstonePolicy.FILTER,
            **stated(
                chunk_rows=section.chunk_rows,
                tombstone_retention_seconds=section.tombstone_retention,
                bulk=section.bulk,
            ),
        )


def layout_of(section: KeyedTableSection, log_partition: str | None = None) -> Layout:
    """The keys of a section without a fault."""
    return Layout(
        partition_keys=tuple(map(read_part, section.partition_keys or ())),
        row_keys=tuple(section.row_keys or ()),
        sequence=None if section.sequence in (None, LOG_ORDER) else section.sequence,
        delete=None if section.delete is None else read_delete(section.delete),
        merge=section.partial_updates is PartialUpdates.MERGE,
        log_partition=log_partition,
        **stated(buckets=section.buckets),
    )


def _log_partition(section: KeyedTableSection, parts: Parts) -> str | None:
    """The partition key that is the partition of the log, as a column of `kafka.partition` is."""
    mine = KafkaField("partition")
    return next((name for name in section.partition_keys or () if parts.columns.get(name) == mine), None)


def read_part(text: str) -> KeyPart:
    """Read a column, or a function of one; raises `PartRefusedError`."""
    found = _CALL.fullmatch(text.strip())
    if found is None:
        if "(" in text:
            raise PartRefusedError("a computed key is a function of a column and one argument, as in hash(device, 64)")
        return KeyPart(text.strip())
    function = _FUNCTIONS.get(found["function"])
    if function is None:
        raise PartRefusedError(f"unknown function {found['function']}: there are {', '.join(_FUNCTIONS)}")
    return KeyPart(found["column"], function, _argument(function, found["argument"]))


def _argument(function: KeyFunction, text: str) -> int | str:
    if function == "coalesce":
        quoted = re.fullmatch(r"'([^']*)'|\"([^\"]*)\"", text)
        if quoted is not None:
            return quoted[1] if quoted[1] is not None else quoted[2]
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text
    if function == "timeslice":
        try:
            number = round(parse_duration(text) * 1_000_000)
        except QuantityError as error:
            raise PartRefusedError(f"{text} is no duration: {error}") from None
    else:
        number = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else 0
    if number <= 0:
        raise PartRefusedError(f"{function} takes ({_WANTED[function]}): the number must be whole and more than 0")
    return number


def read_delete(text: str) -> DeleteRule:
    """Read `column` or `column = value`."""
    found = _DELETE.fullmatch(text.strip())
    if found is None:
        return DeleteRule(text.strip())
    value = found["value"].strip()
    if value in ("true", "false"):
        return DeleteRule(found["column"], value == "true")
    quoted = re.fullmatch(r"'([^']*)'|\"([^\"]*)\"", value)
    if quoted is not None:
        return DeleteRule(found["column"], quoted[1] if quoted[1] is not None else quoted[2])
    return DeleteRule(found["column"], int(value) if re.fullmatch(r"-?[0-9]{1,18}", value) else value)


def _key_findings(section: KeyedTableSection, output: Output | None) -> Iterator[Finding]:
    if section.row_keys is not None and not section.row_keys:
        yield Finding((*AT, "row_keys"), "names no column")
    known: set[str] = set()
    for key, texts in (("partition_keys", section.partition_keys), ("row_keys", section.row_keys)):
        for index, text in enumerate(texts or ()):
            at: KeyPath = (*AT, key, index)
            if text.casefold() in known:
                yield Finding(at, f"{shown(text)} is named twice")
                continue
            known.add(text.casefold())
            yield from _part_findings(text, output, at, computed=key == "partition_keys")
    for name in () if output is None else output.types:
        if folded(name) in RESERVED:
            yield Finding(AT, f"the job has a column {name}, which keyed tables keep for themselves", "rename it")


def _part_findings(text: str, output: Output | None, at: KeyPath, *, computed: bool) -> Iterator[Finding]:
    try:
        part = read_part(text) if computed else KeyPart(text)
    except PartRefusedError as refusal:
        yield Finding(at, str(refusal))
        return
    yield from _column_findings(part.column, output, at)
    kind = None if output is None else output.types.get(part.column)
    if kind is None:
        return
    takes, words = _INPUTS.get(part.function, (is_key_type, "whole numbers, text, bytes, booleans, dates or times"))
    if not takes(kind):
        yield Finding(at, f"{shown(text)} cannot be part of a key: its column is no {words}")
    elif part.function == "coalesce":
        try:
            pa.scalar(part.argument).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            yield Finding(at, f"the default {part.argument!r} is no value of the column {part.column}")


def _column_findings(name: str, output: Output | None, at: KeyPath) -> Iterator[Finding]:
    if output is not None and output.complete and name not in output.types:
        yield Finding(at, f"the table has no column {shown(name)}", nearest(name, output.types))


def _setting_findings(section: KeyedTableSection, output: Output | None) -> Iterator[Finding]:
    if section.sequence not in (None, LOG_ORDER):
        yield from _column_findings(section.sequence or "", output, (*AT, "sequence"))
        kind = None if output is None else output.types.get(section.sequence or "")
        if kind is not None and not is_key_type(kind):
            yield Finding((*AT, "sequence"), "a sequence is a column of whole numbers, text, dates or times")
    if section.delete is not None:
        yield from _delete_findings(read_delete(section.delete), output)
    if section.buckets is not None and section.buckets > BUCKETS_MAX:
        yield Finding((*AT, "buckets"), f"at most {BUCKETS_MAX}")
    if section.bulk and section.delete is not None:
        yield Finding((*AT, "bulk"), "contradicts delete: a bulk load looks up no row that it could delete")


def _delete_findings(rule: DeleteRule, output: Output | None) -> Iterator[Finding]:
    at: KeyPath = (*AT, "delete")
    yield from _column_findings(rule.column, output, at)
    kind = None if output is None else output.types.get(rule.column)
    if kind is None:
        return
    try:
        pa.scalar(rule.value).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        yield Finding(at, f"{shown(rule.column)} is compared with {rule.value!r}, which is no value of it")
