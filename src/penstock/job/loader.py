"""Job files to `JobSpec`s: read and check everything; a file with a fault gives no job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from penstock.job.decode import complete_decode
from penstock.job.document import Document, read_document
from penstock.job.faults import (
    Fault,
    Finding,
    InvalidValueError,
    JobFileError,
    KeyPath,
    Place,
    key_text,
    kind_of,
    without_secrets,
)
from penstock.job.reader import SpecReader, keys_of, known_keys
from penstock.job.schema import INFER
from penstock.job.spark import check_spark
from penstock.job.spec import ClaimsSpec, JobSpec, LogSpec, TableSpec
from penstock.job.texts import read_bounded
from penstock.job.values import LOST

FILE_BYTES_MAX = 1024 * 1024
OTHER_KEYS = ("log", "table")
"""Top-level keys whose meaning depends on the log and the kind of table."""

SpecT = TypeVar("SpecT", bound=LogSpec | TableSpec)
Kinds: TypeAlias = Sequence[type[TableSpec]]
Logs: TypeAlias = Mapping[type[Any], Callable[[Any, JobSpec, SpecReader], Any]]
"""Each with what checks its section, and adds what follows from the rest of the job."""


def _read_job(reader: SpecReader, kinds: Kinds, logs: Logs) -> JobSpec:
    """Read everything that the file states; note what is wrong with it.

    While a kind or a log completes the job it may have faults; `reader.states` shows which keys could be read.
    """
    values = reader.document.values
    kind, log = _chosen("table", kinds, reader), _chosen("log", list(logs), reader)
    own_keys = [key for other in kinds for key in _own_keys(other)]
    reader.note_unknown(values, (), list(dict.fromkeys([*known_keys(JobSpec), *OTHER_KEYS, *own_keys])))
    job = JobSpec(
        **reader.fields(JobSpec, values, ()),
        log=_section("log", log, reader),
        table=_section("table", kind, reader),
    )
    job = replace(job, decode=complete_decode(job, reader))
    job = job.table.complete(job, reader)
    for other in kinds:
        for name in _own_keys(other):
            if reader.has(name) and name not in _own_keys(kind):
                reader.note((name,), f"has no meaning without table.{other.kind}", "remove it", on_key=True)
    for at in [*((name,) for name in kind.unused), *(("alerts", name) for name in kind.unused_alerts)]:
        if reader.has(*at):
            reader.note(at, f"has no meaning for table.{kind.kind}", "remove it", on_key=True)
    check_spark(job, reader)
    both_stated = reader.states("flush", "min_bytes_per_file") and reader.states("flush", "max_bytes_per_batch")
    if both_stated and job.flush.min_bytes_per_file > job.flush.max_bytes_per_batch:
        message = "more than max_bytes_per_batch: no batch could fill a file"
        reader.note(("flush", "min_bytes_per_file"), message)
    job = replace(job, claims=_claims(job, reader), on=_policies(job, reader))
    return replace(job, log=logs[log](job.log, job, reader)) if reader.states("log", log.kind) else job


def _chosen(name: str, specs: Sequence[type[SpecT]], reader: SpecReader) -> type[SpecT]:
    """The kind of table, or the log, that the file states; notes if it does not state exactly one."""
    stated = [spec for spec in specs if reader.has(name, spec.kind)]
    implied = [spec for spec in specs if any(map(reader.has, _own_keys(spec)))]
    chosen = [specs[0], *implied, *stated][-1]
    names = [spec.kind for spec in specs]
    value = reader.written(name)
    if not reader.has(name):
        reader.note((name,), "required key is missing")
    elif isinstance(value, dict):
        reader.note_unknown(value, (name,), names)
        if not value:
            reader.note((name, chosen.kind), "required key is missing", f"one of {', '.join(names)}")
    elif value is not None:
        reader.note((name,), f"expected a mapping, found {kind_of(value)}")
    for spec in stated[1:]:
        reader.note((name, spec.kind), f"contradicts {name}.{stated[0].kind}: state one of them", on_key=True)
    return chosen


def _own_keys(spec: Any) -> list[str]:
    """The top-level keys that a file has only with this kind."""
    return [key.name for key in keys_of(spec) if key.top]


def _section(name: str, spec: Any, reader: SpecReader) -> Any:
    """The spec of the chosen kind or log, without values where the file states none."""
    at: KeyPath = (name, spec.kind)
    value = reader.written(*at)
    section = LOST if value is None else reader.section(spec, value, at)
    return spec(**reader.fields(spec, None, at)) if section is LOST else section


def _claims(job: JobSpec, reader: SpecReader) -> ClaimsSpec | None:
    """How processes share the partitions of the job: by default if it names a group; None: they do not."""
    claims = job.claims
    if claims is None and job.log.shared and job.log.group:
        claims = ClaimsSpec()
    if claims is not None and claims.mode == "static":
        claims = None
    if claims is not None and not job.log.shared:
        message = f"log.{job.log.kind} cannot be shared: processes share partitions through a Kafka topic"
        reader.note(("claims",), message, "remove claims, and run one process for the job", on_key=True)
    return claims


def _policies(job: JobSpec, reader: SpecReader) -> Any:
    """A projection states the columns, so a new field of the source is not one of them."""
    if not reader.has("sql", "select"):
        return job.on
    if reader.states("on", "new_column") and job.on.new_column == "add":
        message, hint = "add contradicts sql.select, which states the columns", "remove it, or remove sql.select"
        reader.note(("on", "new_column"), message, hint)
    return job.on if reader.has("on", "new_column") else replace(job.on, new_column="ignore")


# files


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A job file with its spec, or with its faults in the order of the file."""

    path: Path
    spec: JobSpec | None
    faults: tuple[Fault, ...] = ()
    document: Document = field(default_factory=Document)

    def with_findings(self, findings: Iterable[Finding]) -> CheckedFile:
        """The same file with further faults, each at its place."""
        more = (self._fault(finding) for finding in dict.fromkeys(findings))
        faults = sorted((*self.faults, *more), key=lambda fault: (fault.line or 0, fault.column or 0))
        return replace(self, spec=None if faults else self.spec, faults=tuple(faults))

    def _fault(self, finding: Finding) -> Fault:
        place = self.document.place(finding)
        finding = without_secrets(finding, self.document.value(finding.key))
        return Fault(str(self.path), place.line, place.column, key_text(finding.key), finding.message, finding.hint)


def load_jobs(paths: Sequence[Path], kinds: Kinds, logs: Logs, env: Mapping[str, str] | None = None) -> list[JobSpec]:
    """Read the job files; raises one `JobFileError` with every fault of all of them."""
    return _specs(check_jobs(paths, kinds, logs, env))


def _specs(results: Sequence[CheckedFile]) -> list[JobSpec]:
    faults = [fault for result in results for fault in result.faults]
    if faults:
        raise JobFileError(faults)
    return [result.spec for result in results if result.spec is not None]


def check_jobs(
    paths: Sequence[Path], kinds: Kinds, logs: Logs, env: Mapping[str, str] | None = None
) -> list[CheckedFile]:
    """Check each file, and that no two of them conflict; a path given twice counts once.

    `env` answers `${env:NAME}`; the process environment by default. A file that names no kind is read as the first.
    """
    results: list[CheckedFile] = []
    for path in dict.fromkeys(paths):
        result = _checked(path, kinds, logs, os.environ if env is None else env)
        others = [(other.path, other.spec) for other in results if other.spec is not None]
        conflicts = [_conflict(path, result.spec, *other) for other in others if result.spec is not None]
        faults = [fault for fault in conflicts if fault is not None]
        results.append(replace(result, faults=(*result.faults, *faults[:1])))
    return results


def _checked(path: Path, kinds: Kinds, logs: Logs, env: Mapping[str, str]) -> CheckedFile:
    try:
        document = read_document(_read_text(path), env)
    except InvalidValueError as refusal:
        line, column = (refusal.place.line, refusal.place.column) if refusal.place else (None, None)
        return CheckedFile(path, None, (Fault(str(path), line, column, "", refusal.message, refusal.hint),))
    return _completed(path, document, kinds, logs)


def _completed(path: Path, document: Document, kinds: Kinds, logs: Logs) -> CheckedFile:
    reader = SpecReader(document, path.absolute().parent, list(document.findings))
    job = replace(_read_job(reader, kinds, logs), path=path.absolute())
    if document.value(("schema",)) == INFER:

        def with_fields(fields: Mapping[str, Any]) -> JobSpec:
            stated = replace(document, values={**document.values, "schema": dict(fields)})
            return _specs([_completed(path, stated, kinds, logs)])[0]

        job = replace(job, with_fields=with_fields)
    return CheckedFile(path, job, (), document).with_findings(reader.findings)


def _read_text(path: Path) -> str:
    content = read_bounded(path, FILE_BYTES_MAX)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        place = Place(before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        raise InvalidValueError("not UTF-8 from here on", place=place) from None


def _conflict(path: Path, job: JobSpec, other_path: Path, other: JobSpec) -> Fault | None:
    """Why two jobs cannot run together. Paths of tables are not named: they may be secrets."""
    if (job.name, job.table.path) == (other.name, other.table.path):
        message = f"the same job name and table as in {other_path}: both would move the same positions"
        return Fault(str(path), 1, 1, "job", message, "give one of them another name")
    may_share = job.table.kind == other.table.kind and job.table.many_jobs
    for folder, other_folder in product(job.table.folders, other.table.folders):
        nested = f"{folder}/".startswith(f"{other_folder}/") or f"{other_folder}/".startswith(f"{folder}/")
        if nested and not (may_share and folder == other_folder):
            message = f"a table of the job in {other_path} is in the same folder, or one folder is inside the other"
            return Fault(str(path), 1, 1, "table", message, "give each a folder of its own")
    return None
