"""What cannot be right under `table`, whatever its kind: which kind it is, and the paths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from penstock.job.document import Document
from penstock.job.faults import Finding, KeyPath, nearest, shown
from penstock.job.sections.kind_section import AnyKindSection, Kinds, own_keys
from penstock.job.sections.models import TableSection
from penstock.job.spec import Secret

SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfss", "hdfs")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_WITHOUT_BUCKET = ("file", "hdfs")


def table_path(path: str, folder: Path) -> str:
    """The path without a slash at its end, a relative one taken from the job file's folder; a secret stays one."""
    whole = path.strip()
    if not _SCHEME.fullmatch(whole):
        whole = str((folder / whole).absolute())
    whole = whole.rstrip("/") or "/"
    return Secret(whole) if isinstance(path, Secret) else whole


def meant_kind(document: Document, kinds: Kinds) -> AnyKindSection:
    """The kind of table that the file describes, as far as one can tell from the keys that it states."""
    stated = [kind for kind in kinds if document.has("table", kind.name)]
    signed = [kind for kind in kinds if any(document.has(key) for key in kind.signs)]
    return [kinds[0], *signed, *stated][-1]


def kind_findings(document: Document, kind: AnyKindSection, kinds: Kinds) -> Iterator[Finding]:
    """Whether the table is of one kind."""
    stated = [each.name for each in kinds if document.has("table", each.name)]
    for name in stated[1:]:
        yield Finding(("table", name), f"contradicts table.{stated[0]}: give one of both", on_key=True)
    if not stated and not _misspelled(document, kinds):
        first, *others = kinds
        hint = ", ".join([f"{first.name} is {first.phrase}", *(f"{each.name} {each.phrase}" for each in others)])
        yield Finding(("table", kind.name), "required key is missing", hint)


def stray_findings(document: Document, kind: AnyKindSection, kinds: Kinds) -> Iterator[Finding]:
    """Sections of another kind than the table's, and `place` where rows have none."""
    for other in kinds:
        for name in own_keys(other):
            if document.has(name) and name not in own_keys(kind):
                yield Finding((name,), f"has no meaning without table.{other.name}", "remove it", on_key=True)
    if document.has("place") and not kind.has_place:
        message = f"has no meaning for a {kind.name} table, whose rows are not single records"
        yield Finding(("place",), message, "remove it", on_key=True)


def path_findings(section: TableSection, at: KeyPath) -> Iterator[Finding]:
    """What is wrong with the path of a table."""
    fault = None if section.path is None else _path_fault(section.path)
    if fault is not None:
        yield Finding((*at, "path"), *fault)


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
        return "the table needs a folder of its own", ""
    return None


def _misspelled(document: Document, kinds: Kinds) -> bool:
    """Whether a key under `table` is nearly that of a kind: as an unknown key it has its finding."""
    stated = document.values.get("table")
    names = [each.name for each in kinds]
    return isinstance(stated, dict) and any(nearest(str(name), names) for name in stated)
