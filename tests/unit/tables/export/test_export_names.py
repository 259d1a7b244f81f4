"""The parts of the name of a data file, and foreign names."""

from __future__ import annotations

import pytest

from penstock.tables.export.names import FinalName, final_name, name_space, parse_final_name


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("events.123.12.parquet", FinalName("events.", 123, 12)),
        ("A/day=2026-03-01/events.123.12.parquet", FinalName("events.", 123, 12)),
        ("a.0.0.parquet", FinalName("a.", 0, 0)),
        ("pa4.events.123.13.parquet", FinalName("pa4.events.", 123, 13)),
        ("topic.7.123.13.parquet", FinalName("topic.7.", 123, 13)),
        ("~_topic.7.13.parquet", FinalName("~_topic.", 7, 13)),
    ],
)
def test_a_file_name_holds_partition_and_last_offset(path: str, expected: FinalName) -> None:
    assert parse_final_name(path) == expected


@pytest.mark.parametrize(
    "path",
    [
        "",
        "12",
        "abc",
        "12e",
        "345.12",
        "123.abc",
        "123.parquet",
        "123.abc.parquet",
        "123.12.parquet",
        "123.index=1.12",
        "123.cluster=pa4.index=13",
        "a.123.12.parquet.crc",
        "a.123.12.parquet.tmp",
        ".123.12.parquet",
        "a.123.-1.parquet",
        "a.123~.12.parquet",
        "a.123.12.PARQUET",
        "compacted~export.7.0.parquet",
    ],
)
def test_other_file_names_are_skipped(path: str) -> None:
    assert parse_final_name(path) is None


def test_several_partitions_and_clusters_in_one_folder_are_distinguished() -> None:
    names = [
        "a.456.12.parquet",
        "123.abc",
        "pa4.events.123.13.parquet",
        "a.456.24.parquet",
        "a.123.9.parquet",
        "a.123.10.parquet",
    ]
    result = [name for name in map(parse_final_name, names) if name is not None]
    ours = [name.last_offset for name in result if (name.space, name.partition) == ("a.", 123)]
    theirs = [name.last_offset for name in result if (name.space, name.partition) == ("pa4.events.", 123)]
    assert (max(ours), max(theirs)) == (10, 13)


@pytest.mark.parametrize("cluster", ["", "pa4", "_pa4"])
def test_a_file_name_is_parsed_back_into_its_parts(cluster: str) -> None:
    space = name_space(cluster, "events")
    assert parse_final_name(final_name(space, 123, 9)) == FinalName(space, 123, 9)


def test_clusters_and_topics_never_share_a_name() -> None:
    names = [
        final_name(name_space(cluster, topic), 123, 9)
        for cluster in ("", "pa4", "am5")
        for topic in ("events", "other")
    ]
    assert len(set(names)) == len(names) == 6


@pytest.mark.parametrize(("cluster", "topic"), [("", "_events"), ("", ".events"), ("_pa4", "events"), ("", "events")])
def test_no_file_name_is_hidden_from_readers(cluster: str, topic: str) -> None:
    """Spark and Hive take files that begin with an underscore or a dot for hidden."""
    space = name_space(cluster, topic)
    name = final_name(space, 0, 9)
    assert not name.startswith(("_", "."))
    assert parse_final_name(name) == FinalName(space, 0, 9)
