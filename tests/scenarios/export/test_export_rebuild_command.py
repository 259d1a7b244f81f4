"""`penstock rebuild` on a job file: the broker lists the partitions of the topic."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.logs.registry import open_log
from penstock.tables.registry import load_job
from tests.support.export_root import MONDAY, ExportRoot, job_file
from tests.support.kafka import Topics


def test_lost_logs_are_restored_and_problems_are_reported(tmp_path: Path, bootstrap: str, topic: Topics) -> None:
    path = job_file(tmp_path, topic=topic(partitions=1))
    path.write_text(path.read_text().replace("localhost:1", bootstrap))
    with closing(open_log(load_job(path))) as log:
        (partition,) = log.partitions()
    root = ExportRoot(path)
    root.start(partition)
    for start in (0, 10):
        orders, clicks = range(start, start + 5), range(start + 5, start + 10)
        root.write(partition, start, start + 10, {("order", MONDAY): orders, ("click", MONDAY): clicks})
    unneeded = CliRunner().invoke(app, ["rebuild", str(path)])
    assert unneeded.exit_code == 1 and "nothing was changed" in unneeded.stdout
    shutil.rmtree(root.lake / "_penstock")
    done = CliRunner().invoke(app, ["rebuild", str(path), "--json"])
    output = json.loads(done.stdout)
    assert (done.exit_code, output["job"], output["ok"], output["problems"]) == (0, "shop", True, [])
    assert output["positions"] == {str(partition): 20}
    assert root.open().state([partition]).of(partition).position == 20
    shutil.rmtree(root.lake / "_penstock")
    (root.lake / "click" / f"day={MONDAY}" / f"{partition.topic}.0.9.parquet").unlink()
    refused = CliRunner().invoke(app, ["rebuild", str(path)])
    assert refused.exit_code == 1
    assert "offsets 10 to 19" in refused.stdout and "nothing was changed" in refused.stdout
    assert not (root.lake / "_penstock").exists()
