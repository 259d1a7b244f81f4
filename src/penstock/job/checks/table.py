"""What cannot be right under `table`: paths, and partition columns and properties of `table.delta`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from penstock.job.checks.columns import Output
from penstock.job.document import Document
from penstock.job.export.models import ExportSection
from penstock.job.faults import Finding, KeyPath, nearest, shown
from penstock.job.models import DeltaSection
from penstock.job.spec import Secret

AT: KeyPath = ("table", "delta")
SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfss", "hdfs")
DAY_SECONDS = 86400.0

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_INTERVAL = re.compile(r"(?:interval\s+)?([0-9]{1,9})\s+(second|minute|hour|day|week)s?", re.IGNORECASE)
_INTERVAL_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": DAY_SECONDS, "week": 7 * DAY_SECONDS}
_WITHOUT_BUCKET = ("file", "hdfs")


def table_path(path: str, folder: Path) -> str:
    """The path without a slash at its end, a relative one taken from the job file's folder; a secret stays one."""
    whole = path.strip()
    if not _SCHEME.fullmatch(whole):
        whole = str((folder / whole).absolute())
    whole = whole.rstrip("/") or "/"
    return Secret(whole) if isinstance(path, Secret) else whole


def quarantine_path(table: DeltaSection | ExportSection, folder: Path) -> str:
    """The stated quarantine, or the table's path with `_quarantine` behind it."""
    if table.quarantine is not None:
        return table_path(table.quarantine, folder)
    beside = table_path(table.path or "", folder) + "_quarantine"
    return Secret(beside) if isinstance(table.path, Secret) else beside


def is_routed(document: Document) -> bool:
    """Whether the file describes an export, as far as one can tell from the keys that it states."""
    if document.has("table", "delta") or document.has("table", "export"):
        return document.has("table", "export")
    return document.has("route") or document.has("types")


def table_findings(document: Document) -> Iterator[Finding]:
    """Whether the table is of one kind."""
    if document.has("table", "delta") and document.has("table", "export"):
        yield Finding(("table", "export"), "contradicts table.delta: give one of both", on_key=True)
    if not document.has("table", "delta") and not document.has("table", "export"):
        kind = "export" if is_routed(document) else "delta"
        yield Finding(("table", kind), "required key is missing", "delta is one table, export one for each event type")


def delta_findings(delta: DeltaSection, output: Output | None, folder: Path) -> Iterator[Finding]:
    """Everything that contradicts inside the section and between it and the columns."""
    yield from path_findings(delta, AT, folder)
    yield from _partition_findings(delta.partition_by or [], output)
    yield from _property_findings(delta.properties or {})


def path_findings(section: DeltaSection | ExportSection, at: KeyPath, folder: Path) -> Iterator[Finding]:
    """What is wrong with the path of a table and that of its quarantine."""
    faulty = False
    for name, path in (("path", section.path), ("quarantine", section.quarantine)):
        fault = _path_fault(path) if path is not None else None
        if fault is not None:
            faulty = True
            yield Finding((*at, name), *fault)
    if section.path is None or section.quarantine is None or faulty:
        return
    table, quarantine = (table_path(section.path, folder), table_path(section.quarantine, folder))
    if table == quarantine:
        yield Finding((*at, "quarantine"), "is the table itself")
    elif quarantine.startswith(f"{table}/") or table.startswith(f"{quarantine}/"):
        yield Finding((*at, "quarantine"), "one of both tables lies inside the other", "put them side by side")


def _path_fault(path: str) -> tuple[str, str] | None:
    if not path.isprintable():
        return "a path holds only printable characters", ""
    found = _SCHEME.fullmatch(path.strip())
    if found is None:
        local = path.strip().rstrip("/")
        return None if local not in ("", ".") else ("the table needs a folder of its own", "")
    scheme, rest = found[1], found[2]
    if scheme not in SCHEMES:
        allowed = ", ".join(f"{name}://" for name in SCHEMES)
        hidden = isinstance(path, Secret)
        return (
            "unknown storage" if hidden else f"unknown storage {shown(scheme + '://')}",
            f"a local path or {allowed}",
        )
    bucket, _, key = rest.partition("/")
    if scheme == "file" and bucket:
        return "a file:// path begins with three slashes", "file:///folder/table"
    if not bucket and scheme not in _WITHOUT_BUCKET:
        return f"{scheme}:// needs a bucket or container", f"{scheme}://bucket/table"
    if not key.strip("/"):
        return ("the table needs a folder of its own", "a table at the root would share it with its quarantine")
    return None


def _partition_findings(partition_by: list[str], output: Output | None) -> Iterator[Finding]:
    for index, name in enumerate(partition_by):
        at: KeyPath = (*AT, "partition_by", index)
        if name.casefold() in {other.casefold() for other in partition_by[:index]}:
            yield Finding(at, f"{shown(name)} is named twice")
        elif output is not None:
            yield from _partition_column_findings(name, output, at)
    named = {name.casefold() for name in partition_by}
    if output is not None and output.complete and named and named >= {name.casefold() for name in output.types}:
        yield Finding((*AT, "partition_by"), "every column is a partition column: the files would be empty")


def _partition_column_findings(name: str, output: Output, at: KeyPath) -> Iterator[Finding]:
    if name not in output.types:
        if output.complete:
            hint = "" if isinstance(name, Secret) else nearest(name, output.types)
            hint = hint or f"columns: {', '.join(map(_open, list(output.types)[:20]))}"
            yield Finding(at, f"the table has no column {shown(name)}", hint)
        return
    kind = output.types[name]
    if kind is not None and (pa.types.is_nested(kind) or pa.types.is_binary(kind)):
        yield Finding(at, f"{shown(name)} cannot partition a table: it is a {_word(kind)}", "use a primitive column")


def _open(name: str) -> str:
    return shown(name) if isinstance(name, Secret) else name


def _word(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return "struct"
    if pa.types.is_map(kind):
        return "map"
    return "list" if pa.types.is_list(kind) else "binary"


def _property_findings(properties: Mapping[str, str]) -> Iterator[Finding]:
    for name, value in properties.items():
        at: KeyPath = (*AT, "properties", name)
        match name.casefold():
            case "delta.settransactionretentionduration":
                yield Finding(at, "cannot be set: it would let the table forget its positions", on_key=True)
            case "delta.logretentionduration":
                yield from _retention_findings(value, at)
            case "delta.columnmapping.mode" if value.casefold() != "none":
                yield Finding(at, "column mapping is not written by Penstock", "remove it, or set it to none")


def _retention_findings(value: str, at: KeyPath) -> Iterator[Finding]:
    found = _INTERVAL.fullmatch(value.strip())
    if found is None:
        yield Finding(at, f"{shown(value)} is no Delta interval", "write interval 30 days")
    elif int(found[1]) * _INTERVAL_SECONDS[found[2].lower()] < DAY_SECONDS:
        yield Finding(at, "under a day: commits could no longer be read back", "write interval 1 day or more")
