"""Several exporters share the partitions of one topic: processes come, die and sleep, every record is filed once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import polars as pl

from benchmarks.events import events, export_job, type_names
from tests.support.exports import data_files, places_in
from tests.support.kafka import Produce, Topics
from tests.support.processes import command_json, penstock
from tests.support.waiting import wait_until

PARTITIONS = 12
TYPES = 18
RECORDS = int(os.environ.get("PENSTOCK_SOAK_EVENTS", "2000000"))
SECONDS_MAX = 180.0 + RECORDS / 2_000
SECTIONS = """\
claims: {{client_id: {client}, heartbeat: 2s, topic: {topic}_claims}}
flush: {{allowed_latency: 500ms, max_messages_per_batch: {batch}, min_bytes_per_file: 1B, max_bytes_per_batch: 1B}}
limits: {{transient_retries: 20, shutdown: 30s}}
spark: {{master: "local[1,4]", conf: {{spark.driver.memory: 700m}}}}
"""


def job_of(folder: Path, bootstrap: str, topic: str, client: str) -> Path:
    path = folder / f"{client}.yaml"
    more = SECTIONS.format(client=client, topic=topic, batch=max(2_000, RECORDS // 20))
    path.write_text(export_job(bootstrap, topic, str(folder / "root"), TYPES, more=more))
    return path


def rows_in(root: Path) -> int:
    """How many rows the data files hold, by their footers; a file may be renamed meanwhile."""
    return sum(int(pl.scan_parquet(path).select(pl.len()).collect().item()) for path in data_files(root))


def test_three_exporters_share_twelve_partitions_through_a_kill_and_a_pause(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    """18 types over 3 days, 2 million events; `PENSTOCK_SOAK_EVENTS=40000` is a quick run."""
    name = topic(partitions=PARTITIONS, config={"retention.ms": "-1"})
    root = tmp_path / "root"
    values = list(events(RECORDS, TYPES))
    places = list(produce(name, values[: RECORDS // 2]))
    jobs = [job_of(tmp_path, bootstrap, name, client) for client in ("one", "two", "three")]
    with (
        penstock("run", str(jobs[0]), "--json", own_spark=True) as one,
        penstock("run", str(jobs[1]), "--json", own_spark=True) as two,
        penstock("run", str(jobs[2]), "--json", own_spark=True) as three,
    ):
        one.wait_for("batch committed")
        places += produce(name, values[RECORDS // 2 :])
        two.wait_for("batch committed")
        two.send(signal.SIGKILL)
        three.wait_for("batch committed")
        three.send(signal.SIGSTOP)
        wait_until(lambda: rows_in(root) >= RECORDS, SECONDS_MAX, lambda: one.last_words)
        three.send(signal.SIGCONT)
        for item in (one, three):
            item.send(signal.SIGTERM)
        assert one.exit_code() == 0, one.last_words
        three.exit_code()
    assert places_in(root) == Counter(places)
    names = {path.name for path in root.iterdir() if not path.name.startswith("_")}
    assert names == set(type_names(TYPES))
    assert command_json("verify", str(jobs[0]))["ok"]
