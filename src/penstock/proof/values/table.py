"""The values of a single table: which of its files and columns are compared with the log."""

from __future__ import annotations

import pyarrow as pa

from penstock.flow.columns.partition_values import partition_value
from penstock.job.spec import JobSpec
from penstock.proof import unproven
from penstock.proof.facts import TableFacts
from penstock.proof.files.table import TableFiles
from penstock.proof.findings import Check, conclude
from penstock.proof.offsets.table import DataFile
from penstock.proof.sources import ValueQuestion
from penstock.proof.values.compare import ValueSources, check_values
from penstock.proof.values.files import ValueFile
from penstock.proof.values.rewriting import TableRewriter, body_schema


def check_table_values(job: JobSpec, facts: TableFacts, files: TableFiles, asked: ValueQuestion) -> Check:
    """The invariant of values."""
    if job.sql is not None:
        return conclude("values", "not compared", False, unproven=[unproven.values_of_sql()], partitions=asked.bounds)
    schema = facts.table.schema
    body = body_schema(schema, facts.table.spec.partition_by)
    sources = ValueSources(
        job=job.name,
        asked=asked,
        files=[
            ValueFile(files.storage, each, body, _texts(each, schema, facts.table.spec.partition_by))
            for each in files.data.files
        ],
        quarantine_storage=files.quarantine_storage,
        quarantine_files=[*files.quarantine.files, *files.pending.files],
        columns=files.columns,
        rewriter=TableRewriter(job, schema, facts.table.spec.partition_by),
    )
    return check_values(sources)


def _texts(file: DataFile, schema: pa.Schema, partition_by: tuple[str, ...]) -> dict[str, str | None]:
    """The partition values of a file as the log of the table spells them."""
    return {
        name: partition_value(pa.scalar(file.partition_values.get(name), schema.field(name).type))
        for name in partition_by
    }
