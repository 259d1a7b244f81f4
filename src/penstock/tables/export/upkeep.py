"""Compaction and vacuum of an export, type by type.

Of plain files those of complete days are merged, across Kafka partitions. The log of a plain type swaps the entries of
small files for one of a merged file, which is staged. Finishing it deletes the small files, which the footer of the
merged one names, and gives it its final name.

Vacuum deletes files that no commit can name any more (RULES C7). The file name proves it: a slice's start
below the position of its type, a version that the type's log has passed, a replay run that is over. Foreign names stay
(docs/protocol.md, "Compaction and vacuum").
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from functools import partial

import pyarrow as pa
from msgspec import structs

from penstock.errors import PenstockError
from penstock.flow.route.footers import DAMAGED_FILE, Footer, read_footer
from penstock.flow.write.names import compacted_name
from penstock.job.spec import DAY_FOLDER
from penstock.lake.compaction import (
    CompactionGroup,
    CompactionLimits,
    CompactionSource,
    Merged,
    OneFile,
    Progress,
    merge_files,
)
from penstock.lake.delta.compact import compact as compact_table
from penstock.lake.delta.compact import compact_groups, group_files
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.table import DeltaLog
from penstock.lake.delta.vacuum import (
    Classified,
    KeptReason,
    ListedTable,
    Verdict,
    by_end,
    classify_all,
    data_rules,
    delete_dead,
)
from penstock.lake.reports import CompactReport, VacuumReport
from penstock.quarantine.replay import run_number
from penstock.quarantine.table import Listings, listed_marks, open_quarantine, quarantine_rules
from penstock.storage import Entry
from penstock.tables.export.commits import committed_files
from penstock.tables.export.export import ExportTable
from penstock.tables.export.names import output_name


def compact(
    table: ExportTable, target_bytes: int, *, all_days: bool, progress: Progress | None, effort: CompactionLimits
) -> CompactReport:
    """Merge files below `target_bytes`; of plain ones those of complete days, with `all_days` of all but the newest.

    A type that cannot be compacted does not block the others: the report names it.
    """
    failed = table.finish_renames()
    report = CompactReport()
    logs = table.logs.type_logs()
    failed |= table.logs.unreadable
    for number, (name, log) in enumerate(logs.items()):
        try:
            if name not in failed:
                left = effort.after(report.size_bytes_before)
                report += _compact_type(table, name, log, target_bytes, all_days, left)
        except PenstockError as error:
            failed[name] = error.reason
        if progress is not None:
            progress(number + 1, len(logs))
    return report + CompactReport(failed=tuple(f"{name}: {reason}" for name, reason in sorted(failed.items())))


def _compact_type(
    table: ExportTable, name: str, log: DeltaLog, target_bytes: int, all_days: bool, effort: CompactionLimits
) -> CompactReport:
    if not table.logs.is_plain:
        return compact_table(log, target_bytes, effort=effort)
    log.refresh()
    groups = group_files(_finished(table, name, log, all_days), target_bytes, effort, columns=1)
    if groups and (reason := table.finishing.probe(name)) is not None:
        return CompactReport(dropped=len(groups), failed=(f"{name}: {reason}",))
    report = compact_groups(log, groups, partial(_merge, table, name), effort=effort)
    failed = table.finish_renames([name])
    table.put_markers([name])
    return report + CompactReport(failed=tuple(f"{name}: {reason}" for reason in failed.values()))


def _finished(table: ExportTable, name: str, log: DeltaLog, all_days: bool) -> list[ActiveFile]:
    """The plain files of complete days, or of all days but the newest."""
    table.logs.state()
    files, now = log.active_files(), table.environment.now()
    days = {_day(file) for file in files}
    chosen = {day for day in days if (all_days and day != max(days)) or table.markers.is_complete(name, day)}
    # Where a rename is a copy, a copy that another process began may finish after the deletion and restore the file.
    age_seconds_min = table.job.limits.stage_age_seconds_max if table.logs.storage.keeps_source else 0.0
    return [file for file in files if _day(file) in chosen and now - file.modified_at_ms / 1000 >= age_seconds_min]


def _day(file: ActiveFile) -> str:
    return str(file.values[0])


def _merge(
    table: ExportTable, name: str, inputs: CompactionGroup[ActiveFile], schema: pa.Schema, version_max: int
) -> Merged[ActiveFile]:
    """Write the rows of a group to a staged file, as its log will name it.

    The footer names the files that it replaces, and the files that tasks wrote of their rows.
    """
    logs, day, unique = table.logs, _day(inputs.files[0]), uuid.uuid4().hex
    staged = f"{logs.staged}/{name}/{compacted_name(version_max, unique)}"
    paths = [file.path for file in inputs.files]
    written = [file for path in paths for file in read_footer(logs.storage, path)[0].written]
    footer = Footer(job=logs.job.name, written=tuple(written), inputs=tuple(paths)).as_metadata
    columns = logs.columns_of(name)
    assert columns is not None
    sink = OneFile(logs.storage, staged, columns, logs.export.compression, logs.job.limits.row_group_bytes_max, footer)
    [output] = merge_files(logs.storage, map(CompactionSource, paths), columns, sink, DAMAGED_FILE)
    stats = json.dumps({"numRecords": output.rows})
    staged_file = structs.replace(output, partition_values={DAY_FOLDER: day}, stats=stats)
    final = output_name("compacted", logs.job.name, version_max, unique)
    return Merged(inputs, committed_files(logs, name, [staged_file], [final]))


# vacuum


def listings(table: ExportTable) -> Listings:
    """What the commits of all logs list for the quarantine."""
    logs = table.logs
    marks = dict(listed_marks(logs.job_log))
    for name, log in logs.type_logs().items():
        marks |= listed_marks(log, name)
    return Listings(logs.job_log.quarantine_url, marks, run_number(logs.job_log))


def vacuum(table: ExportTable, *, dry_run: bool = False) -> VacuumReport:
    """Delete the dead files of an export and of its quarantine; the job may run meanwhile.

    A type that cannot be read does not block the others: the report names it.
    """
    logs, environment = table.logs, table.environment
    logs.job_log.refresh()
    failed: dict[str, str] = {}
    result: list[Classified] = []
    quarantine = open_quarantine(table.job, logs.job_log.quarantine_url, environment)
    listed_quarantine = None if quarantine is None else ListedTable.of(quarantine)
    for name, log in logs.type_logs().items():
        try:
            result.append(_type_folder(table, name, log))
        except PenstockError as error:
            failed[name] = error.reason
    failed |= logs.unreadable
    if listed_quarantine is not None and not failed:
        # Any log may still be the one that lists a file: all types of its partition must have passed it.
        marks, state = listings(table).marks, logs.state()
        result.append(
            listed_quarantine.classify(
                lambda opened: quarantine_rules(opened, marks, lambda place: state.of(place).position_of(), by_end)
            )
        )
    report = delete_dead(result, environment.at_step, dry_run=dry_run)
    return replace(report, failed=tuple(f"{name}: {reason}" for name, reason in sorted(failed.items())))


def _type_folder(table: ExportTable, name: str, log: DeltaLog) -> Classified:
    """The folder in which files of a type are staged, listed before its log is read."""
    logs, at_step = table.logs, table.environment.at_step
    if not logs.is_plain:
        listed = ListedTable.of(log)
        at_step("vacuum_listed")
        return listed.classify(data_rules)
    staged = list(logs.storage.list(f"{logs.staged}/{name}"))
    at_step("vacuum_listed")
    log.refresh()
    by_name = data_rules(log)
    pending = {table.finishing.source_of(name, file) for file in log.active_files()}

    def classify(entry: Entry) -> Verdict:
        return KeptReason.PENDING_RENAME if entry.path in pending else by_name.classify(entry.path)

    return classify_all(logs.export.path, logs.storage, staged, classify)
