"""Staged files are checked before the commit: a missing file is never committed."""

from __future__ import annotations

from pathlib import Path

from tests.support.exports import ExportPipe
from tests.support.kafka import Produce, Topics
from tests.support.pipes import once_at


def lose(folder: Path) -> None:
    """Take away what the tasks of a batch have staged, as if they had written it to another machine's disk."""
    result = list(folder.rglob("s.*.pq"))
    assert result
    for item in result:
        item.unlink()


def test_an_export_whose_files_are_not_there_writes_no_entry_and_then_writes_them_again(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name)
    produce(name, ['{"type": "A", "id": 1, "at": "2024-05-01T00:00:00Z"}'])
    recorder = export.run_to_end(at_step=once_at("staged", lambda: lose(export.root)), retries=1)
    assert [item["reason"].split(":")[0] for item in recorder.named("retrying")] == [
        "a staged file is not as its task wrote it"
    ]
    assert export.offsets("A") == [0]
