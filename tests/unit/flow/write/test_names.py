"""File names hold what vacuum must know, and no foreign file looks like one of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.write.names import (
    ClosedName,
    CompactedName,
    ReplayedName,
    StagedName,
    closed_name,
    compacted_name,
    owner_tag,
    parse_closed_name,
    parse_compacted_name,
    parse_replayed_name,
    parse_staged_name,
    replayed_name,
    staged_name,
)

UNIQUE = "0123456789abcdef0123456789abcdef"
TOPIC_ID = "_-9aZ_AbCdEfGhIjKlMn-_"

topic_ids = st.text("ABCXYZabcxyz0123456789_-", min_size=22, max_size=22)
numbers = st.integers(min_value=0, max_value=2**63 - 1)
uniques = st.uuids(version=4).map(lambda item: item.hex)


def test_a_staged_name_spells_partition_slice_and_id() -> None:
    name = staged_name(TOPIC_ID, 7, 0, 12, UNIQUE)
    assert name == "s._-9aZ_AbCdEfGhIjKlMn-_.p7.0.12.0123456789abcdef0123456789abcdef.pq"
    assert parse_staged_name(name) == StagedName(TOPIC_ID, 7, 0, 12)


@given(topic_ids, st.integers(0, 2**31 - 1), numbers, numbers, uniques)
def test_every_staged_name_is_read_back_from_any_folder(
    topic_id: str, partition: int, start: int, end: int, unique: str
) -> None:
    name = staged_name(topic_id, partition, start, end, unique)
    expected = StagedName(topic_id, partition, start, end)
    assert parse_staged_name(name) == expected
    assert parse_staged_name(f"day=2026-01-02/k=a.b/{name}") == expected
    assert name.isascii() and name[0] not in "_.-" and not name.endswith(".parquet")


def test_compacted_replayed_and_closed_names_are_read_back() -> None:
    compacted, replayed = compacted_name(41, UNIQUE), replayed_name("run-1", UNIQUE)
    closed = closed_name(owner_tag("rollups"), 7, UNIQUE)
    assert parse_closed_name("interval=1m/day=x/" + closed) == ClosedName(owner_tag("rollups"), 7)
    assert compacted == f"c.41.{UNIQUE}.pq"
    assert replayed == f"r.run-1.{UNIQUE}.pq"
    assert parse_compacted_name("day=x/" + compacted) == CompactedName(41)
    assert parse_replayed_name("day=x/" + replayed) == ReplayedName("run-1")


def test_kinds_of_file_names_are_distinguished() -> None:
    names = [staged_name(TOPIC_ID, 1, 2, 3, UNIQUE), compacted_name(1, UNIQUE), replayed_name("1", UNIQUE)]
    names.append(closed_name(owner_tag("job"), 1, UNIQUE))
    parsers = [parse_staged_name, parse_compacted_name, parse_replayed_name, parse_closed_name]
    for i, name in enumerate(names):
        assert [parse(name) is not None for parse in parsers] == [i == j for j in range(4)]


@pytest.mark.parametrize(
    "path",
    [
        "part-00000-0123.snappy.parquet",
        "_delta_log/00000000000000000000.json",
        f"s.{TOPIC_ID}.p1.2.3.{UNIQUE}.parquet",
        f"s.{TOPIC_ID}.p1.2.3.{UNIQUE}.pq#1",
        f"s.{TOPIC_ID}.p01.2.3.{UNIQUE}.pq",
        f"s.{TOPIC_ID}.p1.-2.3.{UNIQUE}.pq",
        f"s.{TOPIC_ID}.p1.2.3.{UNIQUE[:-1]}.pq",
        f"xs.{TOPIC_ID}.p1.2.3.{UNIQUE}.pq",
        f"s.{TOPIC_ID}.p1.2.3.{UNIQUE}.pq\n",
        f"s.{TOPIC_ID}.p1.2.3.{UNIQUE}.pq/other",
        f"s.{TOPIC_ID}.p١.2.3.{UNIQUE}.pq",
        "",
    ],
)
def test_a_foreign_file_is_recognised(path: str) -> None:
    assert parse_staged_name(path) is None
    assert parse_compacted_name(path) is None
    assert parse_replayed_name(path) is None


def test_fields_that_would_not_be_read_back_are_refused() -> None:
    for topic_id, partition, start, unique in [
        ("a.b", 0, 0, UNIQUE),
        ("a/b", 0, 0, UNIQUE),
        ("", 0, 0, UNIQUE),
        (TOPIC_ID, -1, 0, UNIQUE),
        (TOPIC_ID, 0, -1, UNIQUE),
        (TOPIC_ID, 0, 0, "short"),
    ]:
        with pytest.raises(ValueError):
            staged_name(topic_id, partition, start, 5, unique)
    with pytest.raises(ValueError):
        replayed_name("a.b", UNIQUE)
