"""Whose rows a table holds: incarnations of topics, other jobs, and the columns that identify them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import TransientError
from penstock.flow.write.names import compacted_name, staged_name
from penstock.job.expressions import KafkaField
from penstock.job.spec import DecodeSpec, JobSpec, KafkaLogSpec, SqlSpec
from penstock.job.sql_text import parse_expression as parse
from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.delta.log_files import app_transactions
from penstock.lake.delta.provenance import CommitSlice, CommitStart, Provenance, placed
from penstock.lake.state import DeltaPartition, Totals
from penstock.logs.log import Partition
from penstock.proof.numbers import UNKNOWN_TOPIC, CommittedSlice, TopicIncarnations, find_incarnations, read_history
from penstock.proof.subject import DataFile, NoPartition, PlaceColumns, RowSource, Subject, place_of
from penstock.tables.delta.spec import DeltaSpec
from tests.support.memory_storage import MemoryStorage

UNIQUE = "0" * 32
NOW = Partition("orders", "new", 0)
THEN = Partition("orders", "old", 0)
TRANSACTIONS = {
    "shop/orders#id": topic_fingerprint("new"),
    "shop/new/0": 30,
    "shop/new/0#token": 4,
    "shop/new/0#written": 25,
    "shop/new/0#quarantined": 5,
    "shop/new/0#replayed": 2,
    "shop/old/0": 9,
    "shop/old/0#written": 9,
    "audit/returns#id": topic_fingerprint("other"),
    "audit/other/3": 7,
    "audit/other/3#written": 7,
    "shop#replay": 1,
}


def test_incarnations_and_rows_are_read_from_the_app_transactions() -> None:
    incarnations = find_incarnations(TRANSACTIONS, "shop", [THEN])
    assert incarnations.current == (NOW,)
    assert incarnations.retired == (THEN,)
    assert incarnations.other_ids == {"other"}
    assert incarnations.rows_written == 25 + 2 + 9 + 7


def test_a_former_topic_incarnation_without_history_has_no_name() -> None:
    assert find_incarnations(TRANSACTIONS, "shop").retired == (Partition(UNKNOWN_TOPIC, "old", 0),)


def test_history_gives_the_slices_oldest_first() -> None:
    read = CommitSlice(*placed(NOW), 4, 9, 1, Totals(read=5, written=5))
    passed = CommitSlice(*placed(NOW), 0, 4, 1, Totals(holes=4))
    start = CommitStart("orders", "new", 1, 0)
    records = [
        {"version": 3, **Provenance(kind="batch", job="shop", slices=(read,)).metadata},
        {"version": 2, **Provenance(kind="batch", job="shop", slices=(passed,)).metadata},
        {"version": 1, **Provenance(kind="start", job="shop", starts=(start,)).metadata},
        {"version": 4, **Provenance(kind="batch", job="audit", slices=(read,)).metadata},
        {"version": 0, "operation": "CREATE TABLE"},
    ]
    assert read_history(records, "shop") == {
        NOW: [CommittedSlice(0, 4, Totals(holes=4), 2), CommittedSlice(4, 9, Totals(read=5, written=5), 3)],
        Partition("orders", "new", 1): [],
    }


def subject(current: tuple[Partition, ...], retired: tuple[Partition, ...] = (), **more: Any) -> Subject:
    """Partitions of which nothing was read."""
    source = RowSource(MemoryStorage(), (), None, pa.schema([]))
    states = dict.fromkeys((*current, *retired), DeltaPartition(0, 0))
    incarnations = TopicIncarnations(current, retired, **more)
    return Subject(job(None), 1, states, {}, incarnations, source)


def test_a_staged_file_name_holds_the_topic_incarnation() -> None:
    assert DataFile(staged_name("old", 0, 0, 9, UNIQUE), 1).topic_id == "old"
    assert DataFile(compacted_name(7, UNIQUE), 1).topic_id is None
    both = subject((NOW,), (THEN,))
    assert both.find("old", "orders", 0) == THEN
    assert both.find(None, "orders", 0) is NoPartition.NO_PLACE


def test_a_file_of_another_writer_is_placed_by_its_columns() -> None:
    one = subject((NOW,))
    assert one.find(None, "orders", 0) == one.find(None, None, 0) == NOW
    assert one.find(None, "elsewhere", 0) is NoPartition.UNKNOWN
    assert one.find(None, "orders", 7) is NoPartition.UNKNOWN
    assert one.find("new", "elsewhere", 0) is NoPartition.UNKNOWN


def test_rows_without_place_columns_are_not_attributed() -> None:
    two_topics = subject((NOW, Partition("returns", "r", 0)))
    assert two_topics.find(None, None, 0) is NoPartition.NO_PLACE
    unnamed = Partition(UNKNOWN_TOPIC, "old", 0)
    forgotten = subject((NOW,), (unnamed,))
    assert forgotten.find("old", "orders", 0) == unnamed
    assert forgotten.find(None, "orders", 0) is NoPartition.NO_PLACE
    shared = subject((NOW,), other_ids=frozenset({"other"}))
    assert shared.find(None, None, 0) is NoPartition.NO_PLACE
    assert shared.find(None, "returns", 0) is shared.find("other", None, 0) is NoPartition.OTHER_JOB


def job(select: tuple[str, ...] | None) -> JobSpec:
    return JobSpec(
        name="shop",
        log=KafkaLogSpec("b:1", topics=("orders",)),
        decode=DecodeSpec("json"),
        schema=pa.schema([("id", pa.int64())]),
        columns={"p": KafkaField("partition"), "o": KafkaField("offset"), "t": parse("lower(id)")},
        table=DeltaSpec("/t"),
        sql=None if select is None else SqlSpec(select),
    )


@pytest.mark.parametrize(
    ("select", "kept"),
    [
        (None, {"partition": "p", "offset": "o"}),
        ((), {"partition": "p", "offset": "o"}),
        (("*",), {"partition": "p", "offset": "o"}),
        (("id", "`p`", "o AS place"), {"partition": "p", "offset": "place"}),
        (("id", "p", "o + 1 AS o"), None),
        (("id",), None),
    ],
)
def test_the_columns_of_a_place_are_known_only_if_they_pass_through(
    select: tuple[str, ...] | None, kept: PlaceColumns | None
) -> None:
    schema = pa.schema([(name, pa.int64()) for name in ("id", "p", "o", "place")])
    assert place_of(job(select), schema) == kept


def entry(storage: MemoryStorage, version: int, numbers: dict[str, int]) -> None:
    lines = [json.dumps({"txn": {"appId": key, "version": number}}) for key, number in numbers.items()]
    storage.put(f"_delta_log/{version:020}.json", "\n".join(["{}", *lines]).encode())


def checkpoint(storage: MemoryStorage, name: str, numbers: dict[str, int], folder: Path) -> None:
    txns = [{"appId": key, "version": number} for key, number in numbers.items()]
    pq.write_table(pa.table({"txn": [*txns, None]}), folder / "checkpoint.parquet")
    storage.put(f"_delta_log/{name}", (folder / "checkpoint.parquet").read_bytes())


def test_app_transactions_are_those_of_the_checkpoint_and_the_entries_behind_it(tmp_path: Path) -> None:
    storage = MemoryStorage()
    checkpoint(storage, f"{2:020}.checkpoint.parquet", {"a": 1, "b": 1}, tmp_path)
    # A checkpoint of two parts of which one is missing does not count.
    checkpoint(storage, f"{3:020}.checkpoint.{1:010}.{2:010}.parquet", {"a": 99}, tmp_path)
    entry(storage, 2, {"a": 98})
    entry(storage, 3, {"a": 2, "c": 1})
    entry(storage, 4, {"a": 3})
    entry(storage, 5, {"a": 97})
    assert app_transactions(storage, 4) == {"a": 3, "b": 1, "c": 1}


def test_a_delta_log_with_a_missing_entry_is_an_error() -> None:
    storage = MemoryStorage()
    entry(storage, 0, {"a": 1})
    entry(storage, 2, {"a": 2})
    with pytest.raises(TransientError):
        app_transactions(storage, 2)


def test_app_transactions_of_an_earlier_version_are_extended_by_newer_entries(tmp_path: Path) -> None:
    storage = MemoryStorage()
    entry(storage, 5, {"a": 5})
    entry(storage, 6, {"c": 6})
    assert app_transactions(storage, 6, (4, {"a": 1, "b": 2})) == {"a": 5, "b": 2, "c": 6}


def test_app_transactions_begin_at_the_checkpoint_if_entries_were_cleaned_since(tmp_path: Path) -> None:
    storage = MemoryStorage()
    checkpoint(storage, f"{6:020}.checkpoint.parquet", {"a": 5, "b": 2}, tmp_path)
    entry(storage, 7, {"c": 6})
    assert app_transactions(storage, 7, (4, {"a": 1, "b": 2})) == {"a": 5, "b": 2, "c": 6}
