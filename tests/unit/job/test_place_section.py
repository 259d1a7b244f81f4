"""`place`: topic, partition and offset of its record are columns of every row of `delta` and `export`."""

from __future__ import annotations

import pytest

from penstock.job.expressions import KafkaField
from penstock.job.kafka_types import place_columns
from tests.unit.job.conftest import BASE, Faults, Load

EXPORT = """\
job: shop
log: {kafka: {bootstrap: "kafka-1:9092", topics: [shop]}}
decode: json
route: {by: field(type)}
event_time: at
types: {order: {schema: {type: string, at: timestamp}}}
table: {export: {path: s3://lake/shop}}
"""
KEYED = BASE.replace("delta: {path: s3://lake/web}", "keyed: {path: s3://lake/web, row_keys: [method]}")
ROLLUP = """\
job: metrics
log: {kafka: {bootstrap: "kafka-1:9092", topics: [metrics]}}
decode: influx
table: {rollup: {path: s3://lake/metrics}}
"""
DEFAULT = {
    "kafka_partition": KafkaField("partition"),
    "kafka_offset": KafkaField("offset"),
    "kafka_topic": KafkaField("topic"),
}


@pytest.mark.parametrize("file", [BASE, EXPORT])
def test_every_row_carries_its_place_by_default(load: Load, file: str) -> None:
    assert load(file).columns == DEFAULT


@pytest.mark.parametrize("file", [BASE, EXPORT])
def test_columns_rename_what_they_name_and_the_others_keep_their_names(load: Load, file: str) -> None:
    columns = load(file + "columns: {source_offset: kafka.offset, source: kafka.topic}\n").columns
    assert columns == {
        "kafka_partition": KafkaField("partition"),
        "source_offset": KafkaField("offset"),
        "source": KafkaField("topic"),
    }


@pytest.mark.parametrize("file", [BASE, EXPORT])
def test_place_none_leaves_the_columns_out(load: Load, file: str) -> None:
    assert load(file + "place: none\n").columns == {}


def test_a_column_of_the_job_that_is_a_part_of_the_place_is_not_added_again(load: Load) -> None:
    columns = load(BASE + "columns: {partition: kafka.partition, offset: kafka.offset}\n").columns
    assert list(columns) == ["partition", "offset", "kafka_topic"]


def test_a_projection_passes_the_place_on_without_naming_it(load: Load) -> None:
    job = load(BASE + "sql: {select: [method, kafka_offset as place], where: kafka_partition > 0}\n")
    assert job.sql is not None
    assert job.sql.select == ("method", "kafka_offset as place", "`kafka_partition`", "`kafka_topic`")
    kept = dict(place_columns(job.columns, job.sql.select))
    assert kept == {"partition": "kafka_partition", "offset": "place", "topic": "kafka_topic"}


def test_a_column_of_the_place_that_the_projection_computes_with_is_added_under_its_default_name(load: Load) -> None:
    job = load(BASE + 'columns: {offset: kafka.offset}\nsql: {select: ["*", "offset + 1 as next"]}\n')
    assert list(job.columns) == ["offset", "kafka_partition", "kafka_topic"]
    job = load(BASE + 'columns: {offset: kafka.offset}\nsql: {select: ["offset + 1 as offset"]}\n')
    assert list(job.columns) == ["offset", "kafka_partition", "kafka_offset", "kafka_topic"]
    assert job.sql is not None
    assert job.sql.select[1:] == ("`kafka_partition`", "`kafka_offset`", "`kafka_topic`")


def test_a_table_can_be_partitioned_by_a_column_of_the_place(load: Load) -> None:
    partitioned = BASE.replace("s3://lake/web", "s3://lake/web, partition_by: [kafka_partition]")
    assert load(partitioned)
    assert load(partitioned + "sql: {select: [method]}\n")


@pytest.mark.parametrize(
    ("file", "key", "message"),
    [
        (BASE.replace("status", "KAFKA_OFFSET"), "schema.KAFKA_OFFSET", "{another_name: kafka.offset}"),
        (
            BASE + "columns: {Kafka_Topic: upper(method)}\n",
            "columns.Kafka_Topic",
            "columns: {another_name: kafka.topic}",
        ),
        (BASE + "sql: {select: [method as kafka_offset]}\n", "sql.select[0]", "{another_name: kafka.offset}"),
        (BASE + "place: nne\n", "place", "did you mean none?"),
        (BASE + "place: {offset: a}\n", "place", "expected one of columns, none"),
        (BASE + "drop: [kafka_offset]\n", "drop[0]", "has no field kafka_offset"),
        (
            EXPORT.replace("type: string", "Kafka_topic: string"),
            "types.order.schema.Kafka_topic",
            "{another_name: kafka.topic}",
        ),
        (KEYED + "place: none\n", "place", "has no meaning for table.keyed"),
        (ROLLUP + "place: none\n", "place", "has no meaning for table.rollup"),
    ],
)
def test_a_wrong_place_section_is_reported(faults: Faults, file: str, key: str, message: str) -> None:
    [(_, found_key, text)] = faults(file)
    assert found_key == key
    assert message in text


def test_keyed_tables_and_rollups_get_no_column(load: Load) -> None:
    assert load(KEYED).columns == {}
    assert load(ROLLUP).columns == {}
