"""The console with many jobs, a week of history and many open pages: start, first paint, memory, answers under load."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from math import sin
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from selenium.webdriver.support.wait import WebDriverWait

from benchmarks.meters import Report
from penstock.console.access import Access
from penstock.console.history import HOUR, TIERS, History, Point
from penstock.console.poller import points_of, rate_of
from penstock.console.server import served
from penstock.console.state import WatchedJob
from tests.support.browser import Browser, open_browser
from tests.support.console import watched

JOBS, PARTITIONS, PAGES = 50, 1_000, 200
ROUNDS = 5
LOAD_SECONDS = 30.0
POLL_SECONDS = 5.0
PAINT = "return performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)[0]"
JOB_FILE = """\
job: job-{number:02}
log: {{kafka: {{bootstrap: "127.0.0.1:1", topics: [web]}}}}
decode: json
schema: {{id: long}}
table: {{delta: {{path: {folder}/lake/{number}}}}}
"""


def bench_console(report: Report) -> dict[str, Any]:
    """Each figure is the median of several rounds; memory is that of the console's process alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report(f"writing a week of {JOBS} jobs with {PARTITIONS} partitions")
        _write_history(folder)
        starts = [_start_seconds(folder / f"jobs{number}") for number in range(ROUNDS)]
        with _process([sys.executable, "-m", "benchmarks.console", name], folder) as (process, url):
            report("opening pages in a browser")
            with open_browser() as browser:
                paints = {page: _paint_ms(browser, url + page) for page in ("", "jobs/job-00", "jobs/job-00?range=7d")}
            report(f"{PAGES} pages are open for {LOAD_SECONDS:g} s")
            resident = psutil.Process(process.pid)
            cpu = sum(resident.cpu_times()[:2])
            waits = asyncio.run(_load(url))
            cpu = sum(resident.cpu_times()[:2]) - cpu
            return {
                "jobs": JOBS,
                "partitions": PARTITIONS,
                "history_mb": round((folder / "console.sqlite").stat().st_size / 1e6, 1),
                "start_s": round(median(starts), 2),
                "first_paint_ms": paints,
                "pages": PAGES,
                "answers": len(waits),
                "answer_ms_median": round(1000 * median(waits)),
                "answer_ms_p99": round(1000 * sorted(waits)[len(waits) * 99 // 100]),
                "cpu_share": round(cpu / LOAD_SECONDS, 2),
                "memory_mb": round(resident.memory_info().rss / 1e6),
            }


def _jobs(folder: Path) -> list[WatchedJob]:
    share = PARTITIONS // JOBS
    return [watched(folder, f"job-{number:02}", range(share)) for number in range(JOBS)]


def _write_history(folder: Path) -> None:
    """All points at once, in the tables that the console makes."""
    History(folder / "console.sqlite").close()
    now = int(time.time())
    with closing(sqlite3.connect(folder / "console.sqlite")) as db:
        for job in _jobs(folder):
            assert job.status is not None
            for partition, point in points_of(job.status, now).items():
                row = (job.name, partition)
                number = db.execute("insert into series (job, partition) values (?, ?) returning id", row).fetchone()[0]
                rows = (
                    (tier, number, at, int(500 * (1 + sin(at / 5_000))), 3, point.read - (now - at) * 100)
                    for tier, kept in TIERS
                    for at in range((now - kept) // tier * tier, now, tier)
                )
                db.executemany("insert into points values (?, ?, ?, ?, ?, ?)", rows)
        db.commit()


def _start_seconds(folder: Path) -> float:
    """How long the command takes to its first answer, with a file per job."""
    folder.mkdir()
    for number in range(JOBS):
        (folder / f"{number}.yaml").write_text(JOB_FILE.format(number=number, folder=folder))
    began = time.monotonic()
    command = [sys.executable, "-m", "penstock.cli", "console", "--listen", "127.0.0.1:0", "--json", "--history"]
    with _process([*command, "history.sqlite"], folder) as (_, url):
        asyncio.run(_get(url, "/"))
        return time.monotonic() - began


@contextmanager
def _process(command: list[str], folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that prints its address first."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            assert process.stdout is not None
            yield process, str(json.loads(process.stdout.readline())["url"])
        finally:
            process.send_signal(signal.SIGINT)


def _paint_ms(browser: Browser, url: str) -> int:
    paints = []
    for _ in range(ROUNDS):
        browser.reset()
        browser.open(url)
        paints.append(float(WebDriverWait(browser.driver, 30).until(lambda driver: driver.execute_script(PAINT))))
    return round(median(paints))


async def _load(url: str) -> list[float]:
    """Pages that ask for themselves when a job changes; returns how long each answer took."""
    waits: list[float] = []
    until = time.monotonic() + LOAD_SECONDS

    async def page(number: int) -> None:
        reader, writer = await _request(url, "/live")
        last = 0.0
        while time.monotonic() < until:
            try:
                line = await asyncio.wait_for(reader.readline(), until - time.monotonic())
            except TimeoutError:
                break
            # As the script does: the changes of two seconds are one request.
            if line.startswith(b"data:") and time.monotonic() - last > 2:
                await asyncio.sleep(0.1 + number % 50 / 125)
                last = time.monotonic()
                await _get(url, "/" if number % 2 else f"/jobs/job-{number % JOBS:02}")
                waits.append(time.monotonic() - last)
        writer.close()

    await asyncio.gather(*(page(number) for number in range(PAGES)))
    return waits


async def _request(url: str, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").rstrip("/").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/html\r\nConnection: close\r\n\r\n".encode())
    await writer.drain()
    return reader, writer


async def _get(url: str, path: str) -> None:
    reader, writer = await _request(url, path)
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    writer.close()


def _serve(folder: Path) -> None:
    """A console whose jobs change as often as a poller would read them."""
    import penstock.tables.delta.kind  # noqa: PLC0415 - what a poller has loaded counts too
    import penstock.watch.status  # noqa: F401, PLC0415

    with served({}, Access(), history=folder / "console.sqlite") as console:
        jobs = {job.name: job for job in _jobs(folder)}
        for job in jobs.values():
            job.recent = console.state.history.points(job.name, HOUR)
        console.state.jobs.update(jobs)
        print(json.dumps({"url": console.url}), flush=True)
        while True:
            for job in jobs.values():
                assert job.status is not None
                now = int(time.time())
                points = points_of(job.status, now)
                console.state.history.observe(job.name, {key: Point(now, 3, 1, it.read) for key, it in points.items()})
                job.recent = console.state.history.points(job.name, HOUR)
                job.rate = rate_of(job.recent)
                console.state.live.publish(job.name)
                time.sleep(POLL_SECONDS / JOBS)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
