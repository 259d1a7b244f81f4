"""The columns that are added so that every row carries its place, and what is wrong with their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.job.document import Document
from penstock.job.expressions import Expression, KafkaField
from penstock.job.faults import Finding, KeyPath, shown
from penstock.job.place import DEFAULT_PLACE, place_columns
from penstock.job.schema import name_fault
from penstock.job.sections.models import JobFile


def read_place(
    file: JobFile, document: Document, columns: Mapping[str, Expression], taken: Iterable[tuple[KeyPath, str]]
) -> tuple[dict[str, Expression], list[Finding]]:
    """The parts of the place that the job's own columns do not keep.

    `taken` are the names that fields and columns have, each with the key that states it.
    """
    names = DEFAULT_PLACE if file.place is None else file.place
    kept = dict(place_columns(columns, (file.sql.select if file.sql is not None else None) or ()))
    added: dict[str, Expression] = {}
    findings: list[Finding] = []
    others = list(taken)
    for part, name in names.items():
        at: KeyPath = ("place", part)
        if part in kept:
            if document.has(*at):
                message = f"column {shown(kept[part])} is kafka.{part} already"
                findings.append(Finding(at, message, f"remove place.{part}, or rename the column"))
            continue
        if fault := name_fault(name):
            findings.append(Finding(at, fault))
        clashes = [(key, other) for key, other in others if other.casefold() == name.casefold()]
        findings += [_clash(document, at, name, key, other) for key, other in clashes]
        others.append((at, name))
        added[name] = KafkaField(part)
    return added, findings


def _clash(document: Document, at: KeyPath, name: str, key: KeyPath, other: str) -> Finding:
    if document.has(*at):
        return Finding(at, f"there is a column {shown(other)} already", "choose another name")
    message = f"{name} is added to every row: it holds the {at[-1]} of its record"
    hint = f"choose another name, or rename the added column: place: {{{at[-1]}: another_name}}"
    return Finding(key, message, hint, on_key=key[0] != "sql" and key[-1] != "message")
