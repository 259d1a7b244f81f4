"""`verify --published`: each row is in the topic once, in every format, and nothing else of the job is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.logs.log import Partition
from penstock.proof.findings import Check
from penstock.publish.output import OutputRecord
from penstock.tables.rollup.proof import verification
from penstock.tables.rollup.publishing import OUTPUTS
from penstock.watch.verify import verify
from tests.scenarios.rollup.damage import WINDOWS, files, raised, rewrite
from tests.scenarios.rollup.rollups import START, Rollup, point
from tests.support.memory_log import MemoryLog, MemoryRecord
from tests.support.memory_output import MemoryCluster, MemoryOutput

UPDATE = "late: update\nupdate_grace: 30d\naggregates: [mean]\n"
PLACE = Partition("rollups", "id-rollups", 0)
TOPICS: dict[Path, list[OutputRecord]] = {}
"""The records of the topic, by the folder of the rollup."""


@pytest.fixture(scope="module", params=["opentsdb", "json"])
def published_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollup]:
    """Windows of two hosts, some of which were corrected after they had been published, and the topic in memory."""
    cluster = MemoryCluster()
    cluster.create("rollups")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            OUTPUTS, "kafka", lambda job, spec, bucket, env: MemoryOutput(cluster, spec.topic, bucket, env.at_step)
        )
        more = f"{UPDATE}publish: {{topic: rollups, format: {request.param}, buckets: 2}}\n"
        rollup = Rollup(tmp_path_factory.mktemp("published"), more)
        for number, host in enumerate("ab"):
            rollup.send(number, *(point(START + item, item % 7, host) for item in range(0, 300, 10)))
        rollup.clock = START + 300
        rollup.run()
        rollup.send(0, point(START + 5, 3.5))
        rollup.run()
        TOPICS[rollup.folder] = cluster.topics["rollups"]
        yield rollup


@pytest.fixture
def rollup(published_once: Rollup, tmp_path: Path) -> Rollup:
    shutil.copytree(published_once.folder, tmp_path, dirs_exist_ok=True)
    TOPICS[tmp_path] = list(TOPICS[published_once.folder])
    log = published_once.log
    log = replace(log, values=dict(log.values), ends=dict(log.ends))
    return replace(published_once, folder=tmp_path, log=log)


def topic_of(records: Sequence[OutputRecord], first: int = 0) -> MemoryLog:
    log = MemoryLog({PLACE: {}})
    log.append(PLACE, *(MemoryRecord(record.value, record.key) for record in records))
    log.firsts[PLACE] = first
    return log


def check(rollup: Rollup, records: Sequence[OutputRecord], first: int = 0) -> Check:
    report = rollup.verify(topic=topic_of(records, first))
    return next(item for item in report.checks if item.name == "published")


def test_rows_and_their_earlier_revisions_are_proven(rollup: Rollup, monkeypatch: pytest.MonkeyPatch) -> None:
    records = TOPICS[rollup.folder]
    rows = rollup.rows()
    assert len(records) == len(rows) + sum(row["revision"] for row in rows.values()) > len(rows)
    for rows_per_pass in (verification.PUBLISHED_ROWS_PER_PASS_MAX, 3):
        monkeypatch.setattr(verification, "PUBLISHED_ROWS_PER_PASS_MAX", rows_per_pass)
        result = check(rollup, records)
        assert (result.verdict.value, result.facts) == ("proven", {"published": len(rows)})


def test_a_record_that_is_missing_is_found_unless_retention_may_have_taken_it(rollup: Rollup) -> None:
    records = TOPICS[rollup.folder]
    assert check(rollup, records[:-1]).verdict.value == "violated"
    trimmed = check(rollup, records, first=len(records) - 1)
    assert trimmed.verdict.value == "not proven"
    assert "no longer has all its records" in trimmed.unproven[0].what


def test_a_duplicate_record_is_found(rollup: Rollup) -> None:
    records = TOPICS[rollup.folder]
    assert check(rollup, [*records, records[-1]]).verdict.value == "violated"


def test_an_altered_record_is_found(rollup: Rollup) -> None:
    """In place of its row, or alongside it."""
    *others, last = TOPICS[rollup.folder]
    altered = OutputRecord(last.key, last.value[:-1] + bytes([last.value[-1] ^ 1]))
    assert check(rollup, [*others, altered]).verdict.value == "violated"
    before = next(record for record in others if record.value[-60:] != last.value[-60:])
    assert check(rollup, [*others, last, before]).verdict.value == "violated"


@pytest.mark.parametrize("column", ["count", "sum", "max"])
def test_an_altered_row_is_found_in_the_topic(column: str, rollup: Rollup) -> None:
    rewrite(files(rollup, WINDOWS, "1m")[0], raised(column))
    assert check(rollup, TOPICS[rollup.folder]).verdict.value == "violated"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"disk{}", None),
        (b"cpu.load{}", b"{"),
        (b"cpu.load{}", b'[{"interval": 5, "timestamp": 1e300}]'),
        (b"cpu.load{}", b'{"interval": {}, "window_start": "9999-12-31"}'),
        (b"cpu.load{}", bytes(200)),
        (None, b""),
    ],
)
def test_records_of_other_writers_are_not_proven(key: bytes | None, value: bytes | None, rollup: Rollup) -> None:
    topic = topic_of(TOPICS[rollup.folder])
    topic.append(PLACE, MemoryRecord(value, key))
    result = next(item for item in rollup.verify(topic=topic).checks if item.name == "published")
    assert (result.verdict.value, len(result.unproven)) == ("not proven", 1)
    assert "1 records of no window in the table" in result.unproven[0].what


def test_rows_that_are_not_published_yet_need_not_be_in_the_topic(rollup: Rollup) -> None:
    more, rows = rollup.more, len(rollup.rows())
    rollup.more = UPDATE
    rollup.clock += 3600
    rollup.run()
    assert len(rollup.rows()) > rows
    rollup.more = more
    result = check(rollup, TOPICS[rollup.folder])
    assert (result.verdict.value, result.facts) == ("proven", {"published": rows})


def test_records_of_before_a_column_was_added_are_not_proven(rollup: Rollup) -> None:
    """OpenTSDB's records have none of them."""
    rollup.more = rollup.more.replace("[mean]", "[mean, first, last]")
    rollup.run()
    result = check(rollup, TOPICS[rollup.folder])
    assert result.verdict.value == ("proven" if "opentsdb" in rollup.more else "not proven")


def test_a_job_that_does_not_publish_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        verify(Rollup(tmp_path).job, published=True)
    assert "remove it" in (refused.value.hint or "")
