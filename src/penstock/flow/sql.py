"""The `sql:` stage: Spark's projection and row filter between decoding and writing (RULES P4).

Decoded rows travel through Spark with hidden columns: where they came from, their state, and for bad rows the error
and the raw record. The predicate becomes a `keep` column and bad rows bypass every expression, so that only the last
stage writes and counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from enum import IntEnum

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from penstock.errors import UserError
from penstock.flow.columns.computed import compute
from penstock.flow.columns.fitting import fit_columns
from penstock.flow.columns.seen_types import from_json, to_json
from penstock.flow.rows import BadRows, in_parts, with_columns
from penstock.flow.stage import Batches, PartitionRows, Stage, by_partition, run_task, without_poison
from penstock.flow.task import Flow, SliceWriter
from penstock.flow.write.manifest import PartitionKey
from penstock.flow.write.report import UNROUTED
from penstock.flow.write.tally import TypeKey
from penstock.job.kafka_types import RECORD_SCHEMA
from penstock.job.spec import SqlSpec
from penstock.logs.batches import gathered, mark_of
from penstock.logs.log import EpochMark


class RowState(IntEnum):
    GOOD = 0
    BAD = 1
    NOTE = 2
    """No record: carries the number of filtered tombstones and new fields, or the mark of a piece, as JSON in the
    error column."""


WRITE_BYTES = 16 * 1024 * 1024
_PREFIX = "_penstock_"
_KEEP = f"{_PREFIX}keep"
HIDDEN = pa.schema(
    [
        (f"{_PREFIX}state", pa.int8()),
        (f"{_PREFIX}error", pa.string()),
        *((f"{_PREFIX}{item.name}", item.type) for item in RECORD_SCHEMA),
    ]
)
_FORBIDDEN_NODES = ("Aggregate", "Generate", "Join", "Window", "Distinct", "Sort", "Union", "Expand", "Filter")


def decode_stage(flow: Flow) -> Stage:
    """Turn Kafka records into rows of the hidden and the visible columns."""
    schema = pa.schema([*HIDDEN, *flow.visible])

    def run(batches: Iterable[pa.RecordBatch]) -> Batches:
        return (fit_columns(rows, schema) for rows in _decoded(flow, batches) if rows.num_rows)

    return run


def _decoded(flow: Flow, batches: Iterable[pa.RecordBatch]) -> Batches:
    decoder = flow.decoder()
    for batch in batches:
        if (marked := mark_of(batch)) is not None:
            key, mark = marked
            yield _note(key, mark=[mark.end, mark.epoch])
        for key, part in by_partition(batch):
            part, poisoned = without_poison(part, flow.poison.get(key, {}))
            yield _bad(poisoned)
            for decoded in in_parts(decoder.decode, part):
                computed = compute(decoded.rows, flow.columns)
                rows = with_columns(computed.rows.columns, computed.columns)
                places = computed.rows.kafka.select(["topic", "partition", "offset", "timestamp"])
                yield with_columns(_hidden(RowState.GOOD, places), rows)
                yield _bad(decoded.bad)
                yield _bad(computed.bad)
                if decoded.filtered or decoded.new_fields:
                    yield _note(key, filtered=decoded.filtered, new_fields=to_json(decoded.new_fields))


def write_stage(flow: Flow) -> Stage:
    """Write what Spark kept, quarantine what was bad, count everything."""

    def run(batches: Iterable[pa.RecordBatch]) -> Batches:
        # Spark cuts by few rows, because it does not know how large they are.
        parts = (part for batch in gathered(batches, WRITE_BYTES) for part in _by_partition_hidden(batch))
        return run_task(_ProjectedTask(flow), parts, flow.failpoint)

    return run


def project(decoded: DataFrame, sql: SqlSpec) -> DataFrame:
    """Apply the job's expressions to the good rows; hidden columns and bad rows pass through."""
    good = F.col(f"{_PREFIX}state") == RowState.GOOD
    hidden = [F.col(name) for name in HIDDEN.names]
    try:
        shown = [F.when(good, column).alias(name) for name, column in _outputs(decoded, sql)]
        keep = F.coalesce(F.expr(sql.where), F.lit(False)) if sql.where else F.lit(True)
        result = decoded.select(*hidden, F.when(good, keep).otherwise(True).alias(_KEEP), *shown)
        _refuse_shuffles(result)
    except (AnalysisException, ParseException) as error:
        raise UserError(
            "the `sql:` stage of the job does not fit its columns",
            detail=str(error).split("\n")[0],
            hint="`sql:` is a projection and a row filter over the decoded and computed columns",
        ) from error
    return result


def output_schema(spark: SparkSession, visible: pa.Schema, sql: SqlSpec) -> pa.Schema:
    """The columns that the projection gives, as Spark types them."""
    empty = spark.createDataFrame([], from_arrow_schema(pa.schema([*HIDDEN, *visible])))
    shown = project(empty, sql).drop(*HIDDEN.names, _KEEP)
    return to_arrow_schema(shown.schema)


def _outputs(decoded: DataFrame, sql: SqlSpec) -> Iterator[tuple[str, Column]]:
    visible = [name for name in decoded.columns if not name.startswith(_PREFIX)]
    for text in sql.select or ("*",):
        if text.strip() == "*":
            yield from ((name, F.col(f"`{name}`")) for name in visible)
        else:
            yield decoded.selectExpr(text).columns[0], F.expr(text)


def _refuse_shuffles(frame: DataFrame) -> None:
    """A projection has no node that groups, joins, multiplies or drops rows."""
    plan = str(frame._jdf.queryExecution().analyzed().toString())
    nodes = [
        node for node in _FORBIDDEN_NODES if any(line.lstrip(" +-:").startswith(node) for line in plan.split("\n"))
    ]
    if nodes:
        raise UserError(
            f"the `sql:` stage needs {', '.join(nodes)}",
            detail="it would group, join, multiply or drop records, so that they could no longer be counted one by one",
            hint="keep to expressions of one record; do the rest when reading the table",
        )


def _hidden(state: RowState, kafka: pa.RecordBatch) -> pa.RecordBatch:
    """Kafka rows and their state as hidden columns."""
    names = [name for name in kafka.schema.names if f"{_PREFIX}{name}" in HIDDEN.names]
    renamed = kafka.select(names).rename_columns([f"{_PREFIX}{name}" for name in names])
    return renamed.append_column(f"{_PREFIX}state", pa.repeat(pa.scalar(int(state), pa.int8()), kafka.num_rows))


def _bad(bad: BadRows) -> pa.RecordBatch:
    return _hidden(RowState.BAD, bad.kafka).append_column(f"{_PREFIX}error", bad.errors)


def _note(key: PartitionKey, **facts: object) -> pa.RecordBatch:
    row = {"state": int(RowState.NOTE), "topic": key[0], "partition": key[1], "error": json.dumps(facts)}
    return pa.RecordBatch.from_pylist([{f"{_PREFIX}{name}": value for name, value in row.items()}])


def _by_partition_hidden(batch: pa.RecordBatch) -> Iterator[PartitionRows]:
    renamed = batch.rename_columns(
        [name.removeprefix(_PREFIX) if name in HIDDEN.names else f"={name}" for name in batch.schema.names]
    )
    yield from by_partition(renamed)


class _ProjectedTask(SliceWriter):
    """Takes rows as the projection leaves them."""

    def take(self, key: PartitionKey, part: pa.RecordBatch) -> None:
        state = part.column("state")
        good = part.filter(pc.equal(state, RowState.GOOD))
        kept = good.filter(good.column(f"={_KEEP}"))
        self.filter(key, good.num_rows - kept.num_rows)
        names = [name for name in kept.schema.names if name.startswith("=") and name != f"={_KEEP}"]
        rows = kept.select(names).rename_columns([name[1:] for name in names])
        self.write(key, rows, kept.select(["topic", "partition", "offset"]))
        bad = part.filter(pc.equal(state, RowState.BAD))
        if bad.num_rows:
            self.quarantine(key, BadRows(bad.select(RECORD_SCHEMA.names), bad.column("error")))
        for note in part.filter(pc.equal(state, RowState.NOTE)).column("error").to_pylist():
            facts = json.loads(note)
            if "mark" in facts:
                self.note_mark(key, EpochMark(*facts["mark"]))
                continue
            self.filter(key, facts["filtered"])
            self._tallies.add_fields(TypeKey(key, UNROUTED), from_json(facts["new_fields"]))
