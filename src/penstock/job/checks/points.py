"""Metrics in a job file: `decode: telegraf` and `decode: influx`, and the tables that take their points."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from penstock.job.document import Document
from penstock.job.faults import Finding, KeyPath, shown
from penstock.job.sections.kind_section import AnyKindSection, Kinds
from penstock.job.sections.models import BlacklistSection, DecodeSection, JobFile
from penstock.job.sections.section import stated
from penstock.job.spec import POINT_FORMATS, BlacklistEntry, PointsSpec, Secret, TombstonePolicy

POINT_KEYS = ("timestamps", "names", "non_numeric", "non_finite", "blacklist")
_AT: KeyPath = ("decode",)
_KEYS_OF_ROWS = ("schema", "columns", "sql")


def points_spec(section: DecodeSection) -> PointsSpec:
    """What the section states about points."""
    entries = [BlacklistEntry(each.name or "", each.tags or {}) for each in section.blacklist or ()]
    own = {name: getattr(section, name) for name in POINT_KEYS}
    return replace(PointsSpec(), **stated(**{**own, "blacklist": tuple(entries) or None}))


def point_findings(file: JobFile, document: Document, kind: AnyKindSection, kinds: Kinds) -> Iterator[Finding]:
    """What is wrong with points: a table that takes none, or only them, and what stands beside them."""
    section = file.decode
    if section is None or section.format is None:
        return
    gives_points = section.format in POINT_FORMATS
    if gives_points != kind.takes_points and document.has("table", kind.name):
        yield _mismatch(section.format, document, kind, kinds)
    for index, entry in enumerate(section.blacklist or ()):
        yield from _entry_findings(entry, (*_AT, "blacklist", index))
    if gives_points and kind.takes_points:
        for name in _KEYS_OF_ROWS:
            if document.has(name):
                yield Finding((name,), f"has no meaning with decode {section.format}", "remove it", on_key=True)
        if file.on is not None and file.on.tombstone is TombstonePolicy.ROW:
            message = f"row has no meaning with decode {section.format}: a tombstone has no points"
            yield Finding(("on", "tombstone"), message, "use filter or quarantine")


def _mismatch(format_stated: str, document: Document, kind: AnyKindSection, kinds: Kinds) -> Finding:
    place = (*_AT, "format") if document.has(*_AT, "format") else _AT
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
