"""A job file to a `JobSpec`: read, check everything, then build; nothing is built from a file with a fault."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.job.checks.claims import claims_findings, with_claims
from penstock.job.checks.decode import read_decode
from penstock.job.checks.spark import spark_findings, unshared_findings
from penstock.job.checks.table import (
    kind_findings,
    meant_kind,
    path_findings,
    stray_findings,
    table_path,
)
from penstock.job.checks.topics import log_findings
from penstock.job.document import Document, DocumentError, read_document
from penstock.job.faults import Fault, Finding, JobFileError, Place, key_text, shown
from penstock.job.place import quoted_name, unselected_place
from penstock.job.sections.kind_section import AnyKindSection, Kinds, Parts, Reading, file_model
from penstock.job.sections.log_section import AnyLogSection, Logs, Reader
from penstock.job.sections.models import FlushSection, JobFile, TableSection, read_border
from penstock.job.sections.section import filled, stated
from penstock.job.spec import (
    ClaimsSpec,
    FlushPolicy,
    JobSpec,
    Limits,
    NewColumnPolicy,
    Policies,
    Secret,
    SparkSpec,
    SqlSpec,
    TableSpec,
)

FILE_BYTES_MAX = 1024 * 1024
ARROW_BATCH_BYTES_MAX = 1024 * 1024 * 1024
PAYLOAD_BYTES_MAX = 1024 * 1024 * 1024

_JOB_NAME = re.compile(r"[a-z0-9._-]{1,64}")
_SECRET_NAME = re.compile(r"password|secret|token|credential|(?:^|[._-])key(?:$|[._-])|sas", re.IGNORECASE)


def load_job(path: Path, kinds: Kinds, logs: Logs, env: Mapping[str, str] | None = None) -> JobSpec:
    """Read a job file with a table of one of these kinds and one of these logs; raises `JobFileError` with all faults.

    `env` answers `${env:NAME}`; the process environment by default. A file that names no kind is read as the first.
    """
    text = _read_text(path)
    folder = path.absolute().parent
    try:
        document = read_document(text, os.environ if env is None else env, folder)
    except DocumentError as fault:
        raise JobFileError([_file_fault(path, fault.message, place=fault.place)]) from None
    reading, kind, parts, findings = _read(document, folder, kinds, logs)
    faults = [_fault(path, document, finding) for finding in findings]
    if faults:
        raise JobFileError(sorted(dict.fromkeys(faults), key=lambda fault: (fault.line or 0, fault.column or 0)))
    [log] = (each for each in logs if each.name in reading.file.logs)
    return _build(reading, kind, log, parts, path)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise JobFileError([_file_fault(path, "there is no such file")]) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a file name"
        raise JobFileError([_file_fault(path, f"cannot be read: {reason}")]) from None
    if len(content) > FILE_BYTES_MAX:
        raise JobFileError([_file_fault(path, "larger than 1 MiB: this is no job file")])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        place = Place(before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        raise JobFileError([_file_fault(path, "not UTF-8 from here on", place=place)]) from None


def _file_fault(path: Path, message: str, place: Place | None = None) -> Fault:
    return Fault(str(path), place.line if place else None, place.column if place else None, "", message)


def _fault(path: Path, document: Document, finding: Finding) -> Fault:
    place = document.place(finding)
    return Fault(str(path), place.line, place.column, key_text(finding.key), finding.message, finding.hint)


def _read(
    document: Document, folder: Path, kinds: Kinds, logs: Logs
) -> tuple[Reading[Any, Any], AnyKindSection, Parts, list[Finding]]:
    """Everything that the file states, and everything that is wrong with it."""
    file, findings = read_border(document, file_model(kinds, logs))
    kind = meant_kind(document, kinds)
    decode, of_decode = read_decode(file, document, folder, kind, kinds)
    reading = Reading(file, file.tables.get(kind.name), document, folder, decode)
    parts, of_kind = kind.read(reading)
    findings = [*document.findings, *findings, *of_decode, *of_kind]
    findings += stray_findings(document, kind, kinds)
    if reading.section is not None:
        findings += path_findings(reading.section, ("table", kind.name))
    findings += _job_findings(file, document)
    findings += claims_findings(file, document)
    if file.table is not None:
        findings += kind_findings(document, kind, kinds)
    if file.log is not None:
        findings += log_findings(file.logs, document, logs)
    return reading, kind, parts, findings


def _job_findings(file: JobFile, document: Document) -> Iterator[Finding]:
    if file.job is not None and not _JOB_NAME.fullmatch(file.job):
        yield Finding(("job",), f"{shown(file.job)} is no job name", "a-z, 0-9, . _ - up to 64 characters")
    elif file.job is not None and not file.job[0].isalnum():
        yield Finding(("job",), f"{shown(file.job)} is no job name", "it begins with a letter or a digit")
    if file.on is not None and file.on.new_column is NewColumnPolicy.ADD and document.has("sql", "select"):
        hint = "remove it, or remove sql.select"
        yield Finding(("on", "new_column"), "add contradicts sql.select, which states the columns", hint)
    flush = file.flush or FlushSection()
    if (flush.min_bytes_per_file or 0) > (flush.max_bytes_per_batch or flush.min_bytes_per_file or 0):
        yield Finding(("flush", "min_bytes_per_file"), "more than max_bytes_per_batch: no batch could fill a file")
    if file.limits is not None and (file.limits.arrow_batch_bytes or 0) > ARROW_BATCH_BYTES_MAX:
        yield Finding(("limits", "arrow_batch_bytes"), "more than 1GiB: Spark cannot hand that over in one piece")
    if file.limits is not None and (file.limits.payload_bytes or 0) > PAYLOAD_BYTES_MAX:
        yield Finding(("limits", "payload_bytes"), "more than 1GiB: an Arrow array could not hold two such records")
    yield from spark_findings(file.spark)
    for kind, section in file.tables.items():
        yield from unshared_findings(file.spark, section, ("table", kind))


def _build(
    reading: Reading[JobFile, TableSection], kind: AnyKindSection, log: AnyLogSection, parts: Parts, path: Path
) -> JobSpec:
    file, section, decode = reading.file, reading.section, reading.decode
    # The checks have refused files without these; the type checker has not seen it.
    assert decode and section and section.path and file.job
    place = TableSpec(
        path=table_path(section.path, reading.folder),
        storage_options=_hiding(section.storage),
        shared=section.shared or False,
    )
    # A projection states the columns, so a new field of the source is none of them.
    fixed = file.sql is not None and file.sql.select
    return JobSpec(
        name=file.job,
        log=log.build(file.logs[log.name], Reader(file.job, reading.folder, place.path)),
        decode=decode,
        schema=parts.schema,
        columns=parts.columns,
        drop=frozenset(file.drop or ()),
        table=kind.build(reading, parts, place),
        sql=_sql(file, parts) if file.sql is not None else None,
        claims=_claims(file) if with_claims(file) else None,
        flush=filled(FlushPolicy(), file.flush, allowed_latency="allowed_latency_seconds"),
        on=filled(Policies(new_column=NewColumnPolicy.IGNORE) if fixed else Policies(), file.on),
        limits=_limits(file),
        spark=filled(SparkSpec(conf=_hiding(file.spark.conf if file.spark else None)), file.spark, conf=None),
        path=path.absolute(),
        **stated(delivery=file.delivery),
    )


def _sql(file: JobFile, parts: Parts) -> SqlSpec:
    """The projection, which also passes on the place of a row, whether it names it or not."""
    assert file.sql is not None
    select = file.sql.select or []
    added = [name for name in parts.columns if name not in (file.columns or {})]
    place = [quoted_name(name) for name in unselected_place(parts.columns, added, select)]
    return SqlSpec((*select, *place), file.sql.where)


def _hiding(settings: Mapping[str, str] | None) -> dict[str, str]:
    """Settings whose names speak of secrets, hidden from print also where they stand in plain text."""
    return {name: Secret(value) if _SECRET_NAME.search(name) else value for name, value in (settings or {}).items()}


def _claims(file: JobFile) -> ClaimsSpec:
    return filled(
        ClaimsSpec(),
        file.claims,
        mode=None,
        heartbeat="heartbeat_seconds",
        max="claims_max",
        work_timeout="work_timeout_seconds",
    )


def _limits(file: JobFile) -> Limits:
    return filled(
        Limits(),
        file.limits,
        open_writers="open_writers_max",
        row_group_bytes="row_group_bytes_max",
        arrow_batch_bytes="arrow_batch_bytes_max",
        payload_bytes=None,
        stage_age="stage_age_seconds_max",
        transient_retries="transient_retries_max",
        shutdown="shutdown_seconds_max",
    )
