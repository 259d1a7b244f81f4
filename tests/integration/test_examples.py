"""The examples run as their pages say, and give what the pages say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from penstock.embedded.broker import Cluster
from penstock.spark.jars import home
from tests.support.processes import free_port
from tests.support.worker_daemon import ADDRESS_NAME

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = re.compile(r"penstock run (\S+) --once")
WAL_PORT = "7070"


def commands(folder: Path) -> list[str]:
    """The lines of the page's commands; a loop over several lines is one of them."""
    [block] = re.findall(r"```sh\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    joined = re.sub(r"\\\n\s+", "", block)
    return re.findall(r"^for [\s\S]*?^done$|^.+$", joined, re.MULTILINE)


def script(folders: list[Path]) -> str:
    """All pages as one script: one process runs all jobs, because starting Spark takes longer than the rest."""
    before, jobs, after = [], [], []
    for folder in folders:
        lines = commands(folder)
        run = next((number for number, line in enumerate(lines) if RUN.fullmatch(line)), len(lines))
        jobs += [f"{folder.name}/{RUN.fullmatch(line)[1]}" for line in lines[run : run + 1]]  # type: ignore[index]
        before += [f"cd {folder.name}", *lines[:run], "cd .."]
        after += [f"cd {folder.name}", *lines[run + 1 :], "cd .."]
    return "\n".join(["set -e -m", *before, f"penstock run {' '.join(jobs)} --once", *after])


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> tuple[Path, str]:
    place = tmp_path_factory.mktemp("examples")
    # `penstock broker send` finds the broker of the tests, and Spark its jars.
    penstock_home = place / "home"
    penstock_home.mkdir()
    (penstock_home / "jars").symlink_to(home() / "jars")
    (penstock_home / "broker").symlink_to(os.environ["PENSTOCK_TESTS_BROKER"])
    folders = []
    for example in sorted(EXAMPLES.iterdir()):
        if example.is_dir():
            folders.append(Path(shutil.copytree(example, place / example.name)))
    port = str(free_port())
    for file in (place / "wal").iterdir():
        file.write_text(file.read_text(encoding="utf-8").replace(WAL_PORT, port), encoding="utf-8")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PENSTOCK_HOME": str(penstock_home),
        "KAFKA_BROKERS": cluster.bootstrap,
        ADDRESS_NAME: "",
    }
    done = subprocess.run(
        ["bash", "-c", script(folders)],
        cwd=place,
        env=environment,
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
