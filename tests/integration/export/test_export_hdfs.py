"""An export to a real HDFS: every record once, a killed rename, compaction, and types that fall behind alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hdfs_native import Client
from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.tables.export.upkeep import vacuum
from penstock.tables.kind import CompactRequest
from penstock.tables.registry import kind_of
from penstock.watch.verify import verify
from tests.support.export_story import Story
from tests.support.exports import ExportPipe, event, export_job, type_of
from tests.support.hdfs import HOME, HdfsCluster
from tests.support.kafka import Produce, Topics
from tests.support.pipes import CrashError
from tests.support.quarantine_url import export_quarantine

pytestmark = pytest.mark.hdfs

AB = [type_of("A"), type_of("B")]
RETRY_SECONDS = 30


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    with HdfsCluster(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


@dataclass(slots=True)
class HdfsExport(ExportPipe):
    """An export whose root is a folder of HDFS; pyarrow reads it back without code of Penstock."""

    address: str = ""
    home: str = ""

    def describe(self, *topics: str, **sections: Any) -> None:
        path: Any = f"{self.address}{self.home}"
        self.path.write_text(export_job(self.bootstrap, path, *topics, **sections))

    def paths(self, name: str = "") -> list[str]:
        folder = f"{self.home}/{name}".rstrip("/")
        try:
            listed = [item.path for item in Client(self.address, {}).list_status(folder, True) if not item.isdir]
        except FileNotFoundError:
            return []
        return sorted(path.removeprefix(f"{self.home}/") for path in listed if path.endswith(".parquet"))

    def _read(self, path: str, *columns: str) -> list[tuple[Any, ...]]:
        with Client(self.address, {}).read(f"{self.home}/{path}") as source:
            rows = pq.ParquetFile(source).read(columns=list(columns)).to_pylist()
        return [tuple(row[name] for name in columns) for row in rows]

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        places = ("kafka_partition", "kafka_offset")
        result = [row for path in self.paths(name) for row in self._read(path, *places, *columns)]
        return [row[2:] for row in sorted(result, key=lambda row: row[:2])]

    def everywhere(self) -> Counter[tuple[int, int]]:
        counter: Counter[tuple[int, int]] = Counter()
        for path in self.paths():
            counter.update((row[0], row[1]) for row in self._read(path, "kafka_partition", "kafka_offset"))
        return counter

    def quarantined(self, *columns: str) -> list[tuple[Any, ...]]:
        rows = DeltaTable(export_quarantine(self.job)).to_pyarrow_table().to_pylist()
        return sorted(tuple(row[name] for name in columns or ("partition", "offset")) for row in rows)


@pytest.fixture
def export(tmp_path: Path, bootstrap: str, spark: SparkSession, hdfs: HdfsCluster) -> HdfsExport:
    return HdfsExport(tmp_path, bootstrap, spark, address=hdfs.address, home=f"{HOME}/{tmp_path.name}")


@pytest.fixture
def story(export: HdfsExport, topic: Topics, produce: Produce) -> Story:
    return Story(export, topic(), produce)


def test_every_record_is_in_the_folder_of_its_type_and_day_or_in_quarantine_once(
    export: HdfsExport, topic: Topics, produce: Produce
) -> None:
    name = topic(partitions=2)
    export.describe(name)
    sent = [event("ABC"[number % 3], number, day=number % 2) for number in range(30)]
    produce(name, [*sent[:20], "not JSON"], partition=0)
    produce(name, sent[20:], partition=1)
    export.run_to_end()
    assert export.rows("A", "id") == [(number,) for number in range(0, 30, 3)]
    assert export.everywhere() == Counter([(0, n) for n in range(20)] + [(1, n) for n in range(10)])
    assert export.quarantined() == [(0, 20)]
    assert export.files("A") == [
        "A/day=2026-03-01/0.18.parquet",
        "A/day=2026-03-01/1.4.parquet",
        "A/day=2026-03-02/0.15.parquet",
        "A/day=2026-03-02/1.7.parquet",
    ]
    report = verify(export.job)
    assert report.ok, report
    assert vacuum(export.table).deleted == ()


def test_a_process_that_died_between_two_renames_is_finished_by_the_next(
    export: HdfsExport, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name)
    produce(name, [event("ABC"[number % 3], number) for number in range(9)])
    renames: list[str] = []

    def die_at_the_second_rename(step: str) -> None:
        renames.extend([step] if step == "renaming" else [])
        if len(renames) == 2:
            raise CrashError(step)

    with pytest.raises(CrashError):
        export.run_to_end(at_step=die_at_the_second_rename)
    assert len(export.files()) == 1
    export.run_to_end()
    assert export.files() == [
        f"{kind}/day=2026-03-01/0.{last}.parquet" for kind, last in (("A", 6), ("B", 7), ("C", 8))
    ]
    assert export.everywhere() == Counter((0, number) for number in range(9))
    report = verify(export.job)
    assert report.ok, report


def test_compaction_merges_the_files_of_a_day(export: HdfsExport, topic: Topics, produce: Produce) -> None:
    name = topic()
    export.describe(name, types=AB)
    for start in (0, 4, 8):
        produce(name, [event("AB"[number % 2], number) for number in range(start, start + 4)])
        export.run_to_end()
    produce(name, [event("A", 12, day=1)])
    export.run_to_end()
    assert export.files("A/day=2026-03-01") == [f"A/day=2026-03-01/0.{last}.parquet" for last in (10, 2, 6)]
    kind_of(export.job).compact(export.job, CompactRequest(all_days=True), Environment(), None)
    (merged,) = export.files("A/day=2026-03-01")
    assert merged.startswith("A/day=2026-03-01/compacted~export.")
    assert export.files("A/day=2026-03-02") == ["A/day=2026-03-02/0.12.parquet"]
    assert export.rows("A", "id") == [(number,) for number in (0, 2, 4, 6, 8, 10, 12)]
    assert export.everywhere() == Counter((0, number) for number in range(13))
    report = verify(export.job)
    assert report.ok, report


def test_a_type_whose_folder_may_not_be_written_falls_behind_alone(
    story: Story, export: HdfsExport, hdfs: HdfsCluster
) -> None:
    export.describe(story.topic, types=AB)
    with export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "AB")
        hdfs.shell("-chown", "hdfs", f"{export.home}/A")
        hdfs.shell("-chmod", "000", f"{export.home}/A")
        story.read(pipeline, "ABAB", day=1)
        # The folder could be written a moment ago: the rows of A are committed and wait for their names (RULES E4).
        assert (story.position_of("A"), story.position_of("B"), story.global_position) == (6, 6, 6)
        assert "permission denied" in export.recorder.named("type cannot be written")[0]["reason"].lower()
        story.read(pipeline, "BA", day=1)
        assert export.state.of(story.partition).lags["A"].deferred == 1
        assert (story.position_of("B"), story.global_position) == (8, 7)
        assert export.offsets("B") == [1, 3, 5, 6]
        hdfs.shell("-chmod", "777", f"{export.home}/A")
        story.clock.seconds += RETRY_SECONDS
        story.run_until_idle(pipeline)
        assert story.global_position == 8
    assert export.offsets("A") == [0, 2, 4, 7]
    assert story.written() == list(range(8))
    assert verify(export.job).ok


def test_a_type_whose_quota_is_used_up_falls_behind_alone(story: Story, export: HdfsExport, hdfs: HdfsCluster) -> None:
    export.describe(story.topic, types=AB)
    hdfs.shell("-mkdir", "-p", f"{export.home}/A")
    hdfs.shell("-chmod", "777", export.home, f"{export.home}/A")
    hdfs.admin("-setSpaceQuota", "0", f"{export.home}/A")
    with export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "ABAB")
        assert (story.position_of("B"), export.offsets("B")) == (4, [1, 3])
        assert export.files("A") == []
        story.read(pipeline, "BA")
        assert (story.position_of("A"), story.position_of("B"), story.global_position) == (5, 6, 5)
        assert "no space left" in export.recorder.named("type cannot be written")[0]["reason"]
        hdfs.admin("-clrSpaceQuota", f"{export.home}/A")
        story.clock.seconds += RETRY_SECONDS
        story.run_until_idle(pipeline)
        story.read(pipeline, "B")
        assert story.global_position == 7
    assert export.offsets("A") == [0, 2, 5]
    assert story.written() == list(range(7))
    assert verify(export.job).ok
