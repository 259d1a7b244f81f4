"""A copy of a table that is taken as docs/operations.md states continues where its log ends, each record once."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import polars as pl

from penstock.tables.registry import load_job
from penstock.watch.verify import verify
from tests.support.kafka import Produce, Topics
from tests.support.pages import blocks
from tests.support.processes import penstock, run_once
from tests.support.quarantine_url import quarantine_of

BY_TEST = "run by tests/integration/delta/test_backup.py"
COMMITS = 3
JOB = """
job: web
log: {{kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}}}
decode: json
schema: {{id: long}}
columns: {{offset: kafka.offset}}
table: {{delta: {{path: {folder}/lake/web}}}}
flush: {{allowed_latency: 1s}}
on: {{bad_share: 1}}
"""


def test_a_table_copied_while_its_job_runs_continues_with_each_record_once(
    topic: Topics, produce: Produce, bootstrap: str, tmp_path: Path
) -> None:
    [backup] = [block.text for block in blocks("sh") if block.note == BY_TEST]
    name = topic()
    job = tmp_path / "job.yaml"
    job.write_text(JOB.format(bootstrap=bootstrap, topic=name, folder=tmp_path), encoding="utf-8")
    records = 0

    def send() -> None:
        nonlocal records
        produce(name, [f'{{"id": {number}}}' for number in range(records, records + 9)] + ["no JSON"])
        records += 10

    with penstock("run", str(job), "--json") as process:
        for _ in range(COMMITS):
            send()
            process.wait_for("batch committed")
        # Commits go on meanwhile.
        with subprocess.Popen(["bash", "-e", "-c", backup], cwd=tmp_path) as copying:
            while copying.poll() is None:
                send()
                process.wait_for("batch committed")
        assert copying.returncode == 0
        send()
        process.wait_for("batch committed")
    shutil.rmtree(tmp_path / "lake")
    shutil.copytree(tmp_path / "backup", tmp_path / "lake" / "web")
    restored = pl.read_delta(str(tmp_path / "lake" / "web")).height
    assert COMMITS * 9 <= restored < records * 9 / 10
    assert verify(load_job(job)).ok
    assert run_once(job) == 0
    report = verify(load_job(job))
    assert report.ok, [check for check in report.checks if not check.ok]
    offsets = Counter(pl.read_delta(str(tmp_path / "lake" / "web"))["offset"].to_list())
    quarantined = Counter(pl.read_delta(quarantine_of(load_job(job)))["offset"].to_list())
    assert offsets == Counter(offset for offset in range(records) if offset % 10 != 9)
    assert quarantined == Counter(offset for offset in range(records) if offset % 10 == 9)
