"""Every row carries topic, partition and offset of its record, also in a table that was made without them."""

from __future__ import annotations

import polars as pl
import pytest

from penstock.environment import Environment
from penstock.lake.delta.compact import compact
from penstock.tables.single.table import existing_table
from penstock.watch.verify import Check, Sample, Verdict, verify
from tests.support.exports import ExportPipe, event
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe

OWN = "columns: {partition: kafka.partition, offset: kafka.offset}\n"


def write_job(pipe: Pipe, topic: str, place: str, on: str = "new_column: add") -> None:
    """A job without columns of its own."""
    pipe.describe(topic, on=on)
    pipe.path.write_text(pipe.path.read_text().replace(OWN, "").replace("place: none\n", place))


def check_of(pipe: Pipe | ExportPipe, name: str) -> Check:
    return next(check for check in verify(pipe.job).checks if check.name == name)


def test_rows_carry_their_place_and_verify_proves_each(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic(2)
    produce(name, ['{"id": 1}', '{"id": 2}'], partition=1)
    write_job(pipe, name, "columns: {at_offset: kafka.offset}\n")
    pipe.run_to_end()
    frame = pl.read_delta(pipe.table).sort("id").select("id", "kafka_topic", "kafka_partition", "at_offset")
    assert frame.rows() == [(1, name, 1, 0), (2, name, 1, 1)]
    assert pipe.verified()


@pytest.mark.parametrize("policy", ["add", "ignore", "quarantine"])
def test_a_table_made_without_place_columns_gets_them_under_every_new_column_policy(
    pipe: Pipe, topic: Topics, produce: Produce, policy: str
) -> None:
    name = topic()
    produce(name, ['{"id": 1}'])
    write_job(pipe, name, "place: none\n", f"new_column: {policy}")
    pipe.run_to_end()
    write_job(pipe, name, "", f"new_column: {policy}")
    before = check_of(pipe, "offsets")
    assert before.verdict is Verdict.NOT_PROVEN
    assert "takes them with the next run" in before.unproven[0].remedy
    assert verify(pipe.job, values=Sample(None)).verdict is Verdict.NOT_PROVEN

    produce(name, ['{"id": 2}'])
    pipe.run_to_end()
    frame = pl.read_delta(pipe.table).sort("id").select("id", "kafka_topic", "kafka_partition", "kafka_offset")
    assert frame.rows() == [(1, None, None, None), (2, name, 0, 1)]
    after = {check.name: check.verdict for check in verify(pipe.job).checks}
    assert after.pop("offsets") is Verdict.NOT_PROVEN
    assert set(after.values()) == {Verdict.PROVEN}


def test_a_table_that_kept_partition_and_offset_alone_stays_proved_when_the_topic_is_added(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ['{"id": 1}'])
    pipe.describe(name)
    pipe.run_to_end()
    pipe.path.write_text(pipe.path.read_text().replace("place: none\n", ""))
    assert pipe.verified()
    produce(name, ['{"id": 2}'])
    pipe.run_to_end()
    compact(existing_table(pipe.job, Environment()), 1 << 20)
    assert pl.read_delta(pipe.table).sort("id").select("offset", "kafka_topic").rows() == [(0, None), (1, name)]
    assert verify(pipe.job, values=Sample(None)).ok


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_an_export_without_place_columns_is_proved_by_counts_and_reported_so(
    export: ExportPipe, topic: Topics, produce: Produce, format: str
) -> None:
    name = topic()
    produce(name, [event("A", 1), event("B", 2), "not JSON"])
    export.describe(name, more="place: none\n", export=f"format: {format}")
    export.run_to_end()
    verdicts = {check.name: check.verdict for check in verify(export.job).checks}
    assert verdicts.pop("offsets") is Verdict.NOT_PROVEN
    assert set(verdicts.values()) == {Verdict.PROVEN}
    offsets = check_of(export, "offsets")
    assert "only counted" in offsets.unproven[0].what
    assert "place: none" in offsets.unproven[0].remedy


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_an_export_with_other_names_for_the_place_is_proved(
    export: ExportPipe, topic: Topics, produce: Produce, format: str
) -> None:
    name = topic()
    produce(name, [event("A", 1), event("B", 2)])
    place = "columns: {t: kafka.topic, p: kafka.partition, o: kafka.offset}\n"
    export.describe(name, more=place, export=f"format: {format}")
    export.run_to_end()
    for folder, offset in (("A", 0), ("B", 1)):
        path = export.root / folder
        frame = pl.read_delta(str(path)) if format == "delta" else pl.read_parquet(path / "**" / "*.parquet")
        assert frame.select("t", "p", "o").rows() == [(name, 0, offset)]
    assert verify(export.job).ok
