"""Pages and examples are run as they are printed, on a real broker, and give the printed output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

from penstock.embedded.broker import Cluster
from penstock.logs.wal.client import WalClient
from penstock.spark.jars import home
from tests.support import forked, spark_jvms
from tests.support.fast_commands import write_penstock
from tests.support.pages import EXAMPLES, NEW_FOLDER, Block, blocks, shell_commands
from tests.support.processes import free_port
from tests.support.wal import served

RUN = re.compile(r"penstock run (\S+) --once(?: +#.*)?")
WAL_PORT, CONSOLE_PORT = "7070", "7080"
FIRST_TABLE = "first-table"
"""The folder of blocks that are run in a new folder."""
SHELL_BLOCKS = [block for block in blocks("sh") if block.folder]
PYTHON_BLOCKS = [block for block in blocks("python") if block.folder]


def folder_of(block: Block) -> str:
    return FIRST_TABLE if block.folder == NEW_FOLDER else Path(block.folder).name


def script() -> str:
    """All blocks as one script. One process runs all jobs, because starting Spark takes longer than the rest."""
    before, jobs, after = [], [], []
    # Pages of examples first: others continue in their folders.
    for block in sorted(SHELL_BLOCKS, key=lambda block: block.page.parent.parent != EXAMPLES):
        # What the Makefile does was done before the tests.
        lines = [line for line in shell_commands(block.text) if not line.startswith("make ")]
        run = next((number for number, line in enumerate(lines) if RUN.fullmatch(line)), None)
        folder = folder_of(block)
        if run is None:
            after += [f"cd {folder}", *lines, "cd .."]
            continue
        match = RUN.fullmatch(lines[run])
        assert match is not None
        jobs.append(f"{folder}/{match[1]}")
        before += [f"cd {folder}", *lines[:run], "cd .."]
        after += [f"cd {folder}", *lines[run + 1 :], "cd .."]
    return "\n".join(
        [
            "set -e -m",
            "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT",
            *before,
            f"penstock run {' '.join(jobs)} --once",
            *after,
        ]
    )


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> tuple[Path, str]:
    """The folder with a copy of each example, after everything was run, and what was printed."""
    place = tmp_path_factory.mktemp("docs")
    # `penstock broker` finds the broker of the tests, and Spark its jars.
    penstock_home = place / "home"
    penstock_home.mkdir()
    (penstock_home / "jars").symlink_to(home() / "jars")
    (penstock_home / "broker").symlink_to(os.environ["PENSTOCK_TESTS_BROKER"])
    for example in EXAMPLES.iterdir():
        if example.is_dir():
            shutil.copytree(example, place / example.name)
    (place / FIRST_TABLE).mkdir()
    port = str(free_port())
    job = place / "wal" / "job.yaml"
    job.write_text(job.read_text(encoding="utf-8").replace(WAL_PORT, port), encoding="utf-8")
    write_penstock(place / "bin")
    forked.start()
    with spark_jvms.lent() as spark:
        done = subprocess.run(
            ["bash", "-c", script().replace(WAL_PORT, port).replace(CONSOLE_PORT, str(free_port()))],
            cwd=place,
            env={
                **os.environ,
                **spark,
                "PATH": f"{place / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PENSTOCK_HOME": str(penstock_home),
                "KAFKA_BROKERS": cluster.bootstrap,
            },
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return place, done.stdout


def test_delta_example_has_the_good_rows_and_the_bad_record_in_quarantine(printed: tuple[Path, str]) -> None:
    place, out = printed
    rows = pl.read_delta(str(place / "delta/lake/web"))
    assert rows.sort("at")["url"].to_list() == ["/tea", "/cart", "/checkout"]
    assert "status: expected int" in out


def test_export_example_has_a_folder_per_type_and_day(printed: tuple[Path, str]) -> None:
    root = printed[0] / "export/lake/shop"
    folders = {str(file.parent.relative_to(root)) for file in root.glob("*/day=*/*.parquet")}
    assert folders == {"click/day=2026-03-01", "click/day=2026-03-02", "order/day=2026-03-02"}


def test_keyed_example_keeps_the_highest_version_of_each_device(printed: tuple[Path, str]) -> None:
    """Also after a load of older versions."""
    rows = pl.read_delta(str(printed[0] / "keyed/lake/devices"))
    assert rows.select("device", "temperature").rows() == [("d-1", 21.0)]


def test_rollup_example_closes_the_windows_before_the_last_record(printed: tuple[Path, str]) -> None:
    rows = pl.read_delta(str(printed[0] / "rollup/lake/metrics"))
    assert rows.select("interval", "count", "sum").sort("interval", "sum").rows() == [
        ("10m", 1, 5.0),
        ("10m", 2, 40.0),
        ("1m", 1, 5.0),
        ("1m", 2, 40.0),
    ]


def test_change_data_example_is_a_copy_of_the_table(printed: tuple[Path, str]) -> None:
    rows = pl.read_delta(str(printed[0] / "change-data/lake/customers"))
    assert rows.select("id", "email").rows() == [(1, "ada@new.example")]


def test_claims_example_bills_every_order(printed: tuple[Path, str]) -> None:
    assert sorted(re.findall(r'billed \{"order": (\d)\}', printed[1])) == ["1", "2", "3", "4"]


def test_wal_example_appends_the_repeated_readings_once(printed: tuple[Path, str]) -> None:
    rows = pl.read_delta(str(printed[0] / "wal/lake/sensors"))
    assert sorted(rows["value"].to_list()) == [0.25, 1.5, 1.75]


def test_first_table_of_the_readme_has_its_record(printed: tuple[Path, str]) -> None:
    rows = pl.read_delta(str(printed[0] / FIRST_TABLE / "lake/web_requests"))
    assert rows.select("method", "url", "status").rows() == [("GET", "/tea", 200)]


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=str)
def test_python_on_a_page_runs(
    block: Block, printed: tuple[Path, str], spark: SparkSession, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = printed[0] / folder_of(block)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KAFKA_BROKERS", bootstrap)
    with served(folder / "wal-of-python") as server:
        with WalClient(server.url) as client:
            client.create_topic("orders", 1)
        exec(
            compile(block.text.replace(f"http://127.0.0.1:{WAL_PORT}", server.url), str(block), "exec"),
            {"spark": spark},
        )
