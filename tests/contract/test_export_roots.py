"""Roots that serve several clusters, topics and jobs, and topics that are recreated (S5, S7), in both formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.logs.log import Partition
from tests.support.export_world import ZERO, ExportWorld, places

OTHER = Partition("other", "topic-id-2", 0)


@pytest.fixture(params=["parquet", "delta"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> ExportWorld:
    return ExportWorld(tmp_path, request.param, partitions=(ZERO,))


def cluster(folder: Path, name: str, topic_id: str) -> ExportWorld:
    """A job of one cluster; all of them share a root, and the name of their topic."""
    (folder / name).mkdir()
    partition = Partition(ZERO.topic, topic_id, 0)
    world = ExportWorld(folder / name, root=str(folder / "root"), partitions=(partition,))
    world.log.values[partition] = {}
    world.cluster, world.name = name, f"from-{name}"
    return world


def test_two_clusters_in_one_root_never_mix(tmp_path: Path) -> None:
    """The same topic name, partition and offsets in both."""
    one, two = cluster(tmp_path, "pa4", "id-pa4"), cluster(tmp_path, "am5", "id-am5")
    one.send("ABA", one.partitions[0])
    two.send("ABAB", two.partitions[0])
    for world in (one, two):
        world.run()
    assert one.rows() == places("ABA") + places("ABAB")
    for world, position in ((one, 3), (two, 4)):
        assert world.state.of(world.partitions[0]).position_of() == position
    names = sorted(entry.path for entry in one.storage.list("A"))
    assert names == [f"A/day=2026-03-01/{name}" for name in ("am5.events.0.2.parquet", "pa4.events.0.2.parquet")]


def test_a_second_job_on_the_same_topic_is_refused_under_any_name(tmp_path: Path) -> None:
    """Its file names would be free, and readers would see every row twice."""
    one, two = cluster(tmp_path, "pa4", "the-id"), cluster(tmp_path, "am5", "the-id")
    one.send("A", one.partitions[0])
    one.run()
    two.send("A", two.partitions[0])
    with pytest.raises(UserError, match="from-pa4 already writes the same topic, or the same file names"):
        two.run()
    assert one.rows() == places("A")


def test_a_second_job_under_the_same_names_is_refused(tmp_path: Path) -> None:
    one, two = cluster(tmp_path, "pa4", "id-1"), cluster(tmp_path, "am5", "id-2")
    two.cluster = "pa4"
    one.send("A", one.partitions[0])
    one.run()
    two.send("A", two.partitions[0])
    with pytest.raises(UserError, match="the job from-pa4 already writes the same topic, or the same file names"):
        two.run()


def test_two_topics_in_one_root_never_mix(world: ExportWorld) -> None:
    """A position of 50 in one topic does not skip offset 3 of the other."""
    world.topics = (ZERO.topic, OTHER.topic)
    world.log.values[OTHER] = {}
    world.send("AB" * 25)
    world.send("ABCA", OTHER)
    world.run()
    assert [world.state.of(partition).position_of() for partition in (ZERO, OTHER)] == [50, 4]
    assert world.rows() == places("AB" * 25) + places("ABCA")


def test_a_process_whose_job_file_got_another_cluster_is_refused(tmp_path: Path) -> None:
    world = cluster(tmp_path, "pa4", "the-id")
    world.send("A", world.partitions[0])
    world.run()
    world.cluster = "am5"
    with pytest.raises(UserError, match="that the logs of the job do not name"):
        world.run(2)
    world.cluster = "pa4"
    world.send("B", world.partitions[0])
    world.run(2)
    assert world.rows() == places("AB")
