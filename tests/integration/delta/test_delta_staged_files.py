"""Staged files are checked before their commit: rows of missing files are never committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.lake.delta.files import StagedFileGoneError
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe, ids, once_at
from tests.support.processes import penstock


def lose(folder: Path, files: str) -> None:
    """Delete what the tasks of a batch have staged, as if they had written it to another machine's disk."""
    result = list(folder.glob(files))
    assert result
    for item in result:
        item.unlink()


@pytest.mark.parametrize("lost", ["table/s.*.pq", "table/_quarantine/**/s.*.pq"])
def test_a_batch_whose_files_are_not_there_is_not_committed_and_written_again(
    pipe: Pipe, topic: Topics, produce: Produce, lost: str
) -> None:
    name = topic()
    produce(name, [*ids(range(20)), "no JSON"])
    pipe.describe(name)
    with pytest.raises(StagedFileGoneError) as raised:
        pipe.run_to_end(at_step=once_at("staged", lambda: lose(pipe.folder, lost)))
    assert "folder that all of them share" in raised.value.hint
    assert pipe.positions() == [0]
    events = pipe.run_to_end(at_step=once_at("staged", lambda: lose(pipe.folder, lost)), retries=1)
    assert len(events.named("retrying")) == 1
    assert pipe.column("id") == list(range(20))
    assert pipe.quarantined("offset") == [(20,)]
    assert pipe.verified()


def test_a_separate_executor_process_writes_to_the_path_of_the_job_file(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    """A real executor, a process with a working directory of its own; the path is relative to the job file."""
    name = topic(2)
    produce(name, ids(range(40)))
    pipe = Pipe(tmp_path, bootstrap, None)  # type: ignore[arg-type]
    pipe.describe(name)
    text = pipe.path.read_text().replace(pipe.table, "./table")
    pipe.path.write_text(text + 'spark: {master: "local-cluster[1,1,1024]"}\n')
    with penstock("run", str(pipe.path), "--once", "--json") as process:
        assert process.exit_code() == 0, process.last_words
    assert sorted(pipe.column("id")) == list(range(40))
    assert pipe.verified()
