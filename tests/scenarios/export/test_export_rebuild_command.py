"""`penstock verify --rebuild` on a job file: the topic's partitions are asked of the broker."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import typer
from typer.testing import CliRunner

from penstock.cli.verify import verify
from penstock.errors import UserError
from penstock.logs.registry import open_log
from penstock.tables.registry import load_job
from tests.export_root import MONDAY, ExportRoot, job_file
from tests.kafka import Topics

app = typer.Typer()
app.command()(verify)


def test_a_lost_ledger_is_rebuilt_and_an_ambiguity_is_named(tmp_path: Path, bootstrap: str, topic: Topics) -> None:
    path = job_file(tmp_path, topic=topic(partitions=1))
    path.write_text(path.read_text().replace("localhost:1", bootstrap))
    with closing(open_log(load_job(path))) as log:
        (partition,) = log.partitions()
    root = ExportRoot(path)
    root.start(partition)
    for start in (0, 10):
        orders, clicks = range(start, start + 5), range(start + 5, start + 10)
        root.write(partition, start, start + 10, {("order", MONDAY): orders, ("click", MONDAY): clicks})
    assert isinstance(CliRunner().invoke(app, [str(path), "--rebuild"]).exception, UserError)
    shutil.rmtree(root.lake / "_penstock")
    done = CliRunner().invoke(app, [str(path), "--rebuild", "--json"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["ok"], told["files"], told["rows"]) == (0, True, 4, 20)
    assert [(each["origin"], each["position"], each["read_again"]) for each in told["partitions"]] == [(0, 20, {})]
    assert root.open().state().of(partition).position == 20
    shutil.rmtree(root.lake / "_penstock")
    (root.lake / "click" / f"day={MONDAY}" / f"{partition.topic}.0.9.parquet").unlink()
    refused = CliRunner().invoke(app, [str(path), "--rebuild"])
    assert refused.exit_code == 1
    assert "offsets 0 to 9" in refused.stdout and "nothing was written" in refused.stdout
    assert not (root.lake / "_penstock").exists()
