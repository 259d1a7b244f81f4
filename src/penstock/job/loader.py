"""Job files to `JobSpec`s: read, check everything, then complete; nothing is built from a file with a fault."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from penstock.job.decode import complete_decode
from penstock.job.document import Document, DocumentError, read_document
from penstock.job.faults import Fault, Finding, JobFileError, Place, RefusedError, key_text, kind_of
from penstock.job.reader import Reader, known_keys
from penstock.job.sections import AnyKindSection, AnyLogSection, Kinds, KindSection, Logs
from penstock.job.spark import check_spark
from penstock.job.spec import ClaimsSpec, JobSpec, NewColumnPolicy
from penstock.job.texts import read_bounded

FILE_BYTES_MAX = 1024 * 1024
OTHER_KEYS = ("log", "schema", "columns", "place", "table")
"""Top-level keys whose meaning depends on the log, the decoder and the kind of table."""

SectionT = TypeVar("SectionT", bound=AnyKindSection | AnyLogSection)


def load_job(path: Path, kinds: Kinds, logs: Logs, env: Mapping[str, str] | None = None) -> JobSpec:
    """Read a job file with a table of one of these kinds and one of these logs; raises `JobFileError` with all faults.

    `env` answers `${env:NAME}`; the process environment by default. A file that names no kind is read as the first.
    """
    return _load(path, kinds, logs, env)[0]


def _load(path: Path, kinds: Kinds, logs: Logs, env: Mapping[str, str] | None) -> tuple[JobSpec, Document]:
    text = _read_text(path)
    folder = path.absolute().parent
    try:
        document = read_document(text, os.environ if env is None else env, folder)
    except DocumentError as fault:
        raise JobFileError([_file_fault(path, fault.message, place=fault.place)]) from None
    reader = Reader(document, folder, list(document.findings))
    job = _read_job(reader, kinds, logs)
    faults = [_fault(path, document, finding) for finding in dict.fromkeys(reader.findings)]
    if faults:
        raise JobFileError(sorted(faults, key=lambda fault: (fault.line or 0, fault.column or 0)))
    return replace(job, path=path.absolute()), document


def _fault(path: Path, document: Document, finding: Finding) -> Fault:
    place = document.place(finding)
    return Fault(str(path), place.line, place.column, key_text(finding.key), finding.message, finding.hint)


def _read_text(path: Path) -> str:
    try:
        content = read_bounded(path, FILE_BYTES_MAX)
    except RefusedError as refusal:
        raise JobFileError([_file_fault(path, refusal.message)]) from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        place = Place(before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        raise JobFileError([_file_fault(path, "not UTF-8 from here on", place=place)]) from None


def _file_fault(path: Path, message: str, place: Place | None = None) -> Fault:
    return Fault(str(path), place.line if place else None, place.column if place else None, "", message)


def _read_job(reader: Reader, kinds: Kinds, logs: Logs) -> JobSpec:
    """Everything that the file states; what is wrong with it is noted."""
    values = reader.document.values
    kind, log = _chosen("table", kinds, reader), _chosen("log", logs, reader)
    own_keys = [key for other in kinds for key in other.own_keys()]
    reader.note_unknown(values, (), list(dict.fromkeys([*known_keys(JobSpec), *OTHER_KEYS, *own_keys])))
    job = JobSpec(
        **reader.fields(JobSpec, values, ()),
        log=_section("log", log, reader),
        schema=pa.schema([]),
        columns={},
        table=_section("table", kind, reader),
    )
    _check_choice("log", logs, log, reader)
    _check_choice("table", kinds, kind, reader)
    job = replace(job, decode=complete_decode(job, kind, reader))
    job = kind.complete(job, reader)
    for other in kinds:
        for name in other.own_keys():
            if reader.has(name) and name not in kind.own_keys():
                reader.note((name,), f"has no meaning without table.{other.name}", "remove it", on_key=True)
    for name in kind.unused:
        if reader.has(name):
            reader.note((name,), f"has no meaning for table.{kind.name}", "remove it", on_key=True)
    check_spark(job, reader)
    both_stated = reader.states("flush", "min_bytes_per_file") and reader.states("flush", "max_bytes_per_batch")
    if both_stated and job.flush.min_bytes_per_file > job.flush.max_bytes_per_batch:
        message = "more than max_bytes_per_batch: no batch could fill a file"
        reader.note(("flush", "min_bytes_per_file"), message)
    job = replace(job, claims=_claims(job, log, reader), on=_policies(job, reader))
    return replace(job, log=log.complete(job.log, job, reader) if reader.states("log", log.name) else job.log)


def _chosen(name: str, sections: Sequence[SectionT], reader: Reader) -> SectionT:
    """The kind of table, or the log, that the file describes as far as is known."""
    stated = [section for section in sections if reader.has(name, section.name)]
    meant = [kind for kind in sections if isinstance(kind, KindSection) and any(map(reader.has, kind.own_keys()))]
    return [sections[0], *meant, *stated][-1]


def _check_choice(name: str, sections: Sequence[SectionT], chosen: SectionT, reader: Reader) -> None:
    """Note whether the file states one kind of table, or one log."""
    stated = [section for section in sections if reader.has(name, section.name)]
    value = reader.document.values.get(name)
    if not reader.has(name):
        reader.note((name,), "required key is missing")
    elif value is not None and not isinstance(value, dict):
        reader.note((name,), f"expected a mapping, found {kind_of(value)}")
    if not isinstance(value, dict):
        return
    names = [section.name for section in sections]
    reader.note_unknown(value, (name,), names)
    for section in stated[1:]:
        message = f"contradicts {name}.{stated[0].name}: give one of both"
        reader.note((name, section.name), message, on_key=True)
    if not value:
        reader.note((name, chosen.name), "required key is missing", f"one of {', '.join(names)}")


def _section(name: str, section: AnyKindSection | AnyLogSection, reader: Reader) -> Any:
    """The spec of the chosen kind or log, without values where the file states none."""
    values = reader.document.values.get(name)
    if isinstance(values, dict) and section.name in values:
        spec = reader.section(section.spec, values[section.name], (name, section.name))
        if isinstance(spec, section.spec):
            return spec
    return section.spec(**reader.fields(section.spec, None, (name, section.name)))


def _claims(job: JobSpec, log: AnyLogSection, reader: Reader) -> ClaimsSpec | None:
    """How processes share the partitions of the job: by default if it names a group; None: they do not."""
    claims = job.claims
    if claims is None and log.shared and job.log.group:
        claims = ClaimsSpec()
    if claims is not None and claims.mode == "static":
        claims = None
    if claims is not None and not log.shared:
        message = f"log.{log.name} cannot be shared: the processes of a job meet in a topic of Kafka"
        reader.note(("claims",), message, "remove claims, and run one process for the job", on_key=True)
    return claims


def _policies(job: JobSpec, reader: Reader) -> Any:
    """A projection states the columns, so a new field of the source is none of them."""
    if not reader.has("sql", "select"):
        return job.on
    if reader.states("on", "new_column") and job.on.new_column is NewColumnPolicy.ADD:
        message, hint = "add contradicts sql.select, which states the columns", "remove it, or remove sql.select"
        reader.note(("on", "new_column"), message, hint)
    return job.on if reader.has("on", "new_column") else replace(job.on, new_column=NewColumnPolicy.IGNORE)


# several files


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A job file with its spec, or with its faults."""

    path: Path
    spec: JobSpec | None
    faults: tuple[Fault, ...] = ()
    document: Document = field(default_factory=Document)

    def with_findings(self, findings: Iterable[Finding]) -> CheckedFile:
        """The same file with faults that only a deeper check finds."""
        faults = tuple(_fault(self.path, self.document, finding) for finding in findings)
        return replace(self, faults=(*self.faults, *faults))


def check_jobs(
    paths: Sequence[Path], kinds: Kinds, logs: Logs, env: Mapping[str, str] | None = None
) -> list[CheckedFile]:
    """Check each file, and that no two of them get in each other's way; a path given twice counts once."""
    results: list[CheckedFile] = []
    for path in dict.fromkeys(paths):
        try:
            spec, document = _load(path, kinds, logs, env)
        except JobFileError as error:
            results.append(CheckedFile(path, None, error.faults))
            continue
        earlier = [(result.path, result.spec) for result in results if result.spec is not None]
        clashes = (_clash(path, spec, other_path, other) for other_path, other in earlier)
        faults = tuple(fault for fault in clashes if fault is not None)[:1]
        results.append(CheckedFile(path, spec, faults, document))
    return results


def load_jobs(paths: Sequence[Path], kinds: Kinds, logs: Logs, env: Mapping[str, str] | None = None) -> list[JobSpec]:
    """Read the job files; raises one `JobFileError` with every fault of all of them."""
    results = check_jobs(paths, kinds, logs, env)
    faults = [fault for result in results for fault in result.faults]
    if faults:
        raise JobFileError(faults)
    return [result.spec for result in results if result.spec is not None]


def _clash(path: Path, job: JobSpec, other_path: Path, other: JobSpec) -> Fault | None:
    """Why two jobs cannot run together. Paths of tables are not named: they may be secrets."""
    if (job.name, job.table.path) == (other.name, other.table.path):
        message = f"the same job name and table as in {other_path}: both would move the same positions"
        return Fault(str(path), 1, 1, "job", message, "give one of them another name")
    may_share = job.table.kind == other.table.kind and job.table.many_jobs
    for folder, other_folder in product(job.table.folders, other.table.folders):
        nested = f"{folder}/".startswith(f"{other_folder}/") or f"{other_folder}/".startswith(f"{folder}/")
        if nested and not (may_share and folder == other_folder):
            message = f"a table of the job in {other_path} lies in the same folder, or one inside the other"
            return Fault(str(path), 1, 1, "table", message, "give each a folder of its own")
    return None
