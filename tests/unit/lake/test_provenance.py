"""The metadata of Penstock's commits: every released form stays readable, and commits of other writers are ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvariantError
from penstock.flow.write.manifest import StagedFile
from penstock.lake.delta.provenance import (
    CommitSlice,
    CommitStart,
    Provenance,
    ReplayedOffsets,
    commits_of,
    placed,
    provenance_of,
)
from penstock.lake.state import TOTAL_NAMES, Totals
from penstock.logs.log import Partition

GOLDEN = Path(__file__).parents[2] / "golden" / "provenance" / "v1"
ZERO, ONE = Partition("events", "kQ2x", 0), Partition("events", "kQ2x", 1)
BAD = StagedFile("events", 0, "s.kQ2x.0.bad.pq", 2, 900, {}, '{"numRecords":2}')
EVERY_TOTAL = Totals(*range(1, len(TOTAL_NAMES) + 1))
RELEASED = {
    "batch": Provenance(
        kind="batch",
        job="shop",
        batch="b-1",
        slices=(
            CommitSlice(*placed(ZERO), 0, 100, 2, Totals(read=90, written=88, quarantined=2, holes=7, gap=3), (BAD,)),
            CommitSlice(*placed(ONE), 5, 9, 0, Totals(gap=4)),
        ),
        starts=(CommitStart(*placed(ONE), 5),),
        rows=88,
        size_bytes=4096,
    ),
    "every_total": Provenance(
        kind="batch", job="shop", batch="b-2", slices=(CommitSlice(*placed(ZERO), 0, 1, 1, EVERY_TOTAL),), rows=0
    ),
    "fence": Provenance(kind="fence", job="shop", batch="b-3", rows=0),
    "replay": Provenance(
        kind="replay",
        job="shop",
        batch="b-4",
        run=3,
        offsets=(ReplayedOffsets(*placed(ZERO), ((7, 8), (41, 43))),),
        rows=3,
        size_bytes=700,
    ),
    "compact": Provenance(kind="compact", job="shop", files_removed=5, files_added=1),
    "create": Provenance(kind="create", job="shop"),
    "steps": Provenance(
        kind="batch",
        job="shop",
        batch="b-5",
        slices=(CommitSlice(*placed(ZERO), 0, 100, 2, log_end=140),),
        quarantined=3,
        filtered=4,
        files_added=2,
        steps={"plan": 0.25, "read": 1.5, "decode": 2.0, "write": 0.75},
    ),
}


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_record_stays_readable_and_is_written_unchanged(name: str) -> None:
    text = (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    assert provenance_of({"version": 7, **json.loads(text)}) == RELEASED[name]
    assert json.dumps(RELEASED[name].metadata, separators=(",", ":")) == text


def test_counts_and_files_of_a_slice_come_back_as_they_were() -> None:
    assert RELEASED["every_total"].slices[0].totals == EVERY_TOTAL
    assert RELEASED["batch"].slices[0].files == (BAD,)
    assert RELEASED["batch"].slices[1].place == ONE


@pytest.mark.parametrize(
    "foreign", [{}, {"penstock": None}, {"penstock": "0.1"}, {"penstock": {"job": "shop"}}], ids=str
)
def test_a_commit_by_another_writer_is_ignored(foreign: dict[str, Any]) -> None:
    assert provenance_of({"version": 1, "operation": "WRITE", **foreign}) is None


def test_the_commits_of_a_job_are_found_among_those_of_others() -> None:
    own, other = RELEASED["create"], Provenance(kind="create", job="audit")
    history = [{"version": "3", **own.metadata}, {"version": 2}, {"version": 1, **other.metadata}]
    assert list(commits_of(history, "shop")) == [(3, own)]


def test_unknown_fields_are_skipped() -> None:
    body = {**RELEASED["create"].metadata["penstock"], "colour": "red"}
    assert provenance_of({"version": 1, "penstock": body}) == RELEASED["create"]


@pytest.mark.parametrize("change", [{"v": 2}, {"v": None}, {"job": None}, {"slices": [{}]}, {"rows": "many"}], ids=str)
def test_a_record_of_a_newer_version_or_a_damaged_one_stops_the_reader(change: dict[str, Any]) -> None:
    body = {**RELEASED["batch"].metadata["penstock"], **change}
    with pytest.raises(InvariantError, match="commit 7 "):
        provenance_of({"version": 7, "penstock": body})
