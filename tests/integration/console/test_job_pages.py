"""The pages of jobs in a real browser, next to a real broker and Spark: one job with each kind of table."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.claims.group import open_group
from penstock.console.access import Access
from penstock.console.server import Served, served
from penstock.console.state import watched_files
from penstock.job.spec import ClaimsSpec, kafka_of
from penstock.logs.registry import open_log
from penstock.tables.registry import load_job
from tests.support.browser import PHONE, Browser
from tests.support.console_jobs import JOBS, SCRIPT, ConsoleJobs
from tests.support.spark_jvms import lent

COUNT = 40
TABS = ("", "/table", "/quarantine", "/claims", "/verify", "/explorer", "/settings")


@pytest.fixture(scope="module")
def jobs(bootstrap: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> ConsoleJobs:
    """Every job has read all its records but the last four."""
    jobs = ConsoleJobs(tmp_path_factory.mktemp("jobs"), bootstrap)
    jobs.send(COUNT)
    jobs.run(spark)
    jobs.send(4)
    return jobs


@pytest.fixture(scope="module")
def console(jobs: ConsoleJobs) -> Iterator[Served]:
    files = watched_files(jobs.paths.values())
    with served(files, Access(operate_locally=True), history=jobs.folder / "history.sqlite") as console:
        yield console


@pytest.fixture
def page(browser: Browser, console: Served) -> Iterator[Browser]:
    """The browser; whatever a test does, no script fails and the policy forbids nothing."""
    browser.wait(lambda: all(job.status for job in console.state.jobs.values()), "the first status of every job")
    yield browser
    assert browser.faults() == []


def go(page: Browser, console: Served, path: str) -> None:
    page.open(f"{console.url}jobs/{path}")


def confirm(page: Browser) -> None:
    """Answer the page that asks whether to act."""
    page.wait(lambda: page.all("form input[name=confirmed]"), "the question")
    page.click("main form button")


def cells(page: Browser, state: str) -> int:
    return len(page.all(f".strip .cell.{state}"))


def test_the_page_of_a_job_shows_what_only_its_kind_knows(page: Browser, console: Served) -> None:
    go(page, console, "shop")
    assert page.texts(".strip figcaption") == ["click", "order"]
    assert cells(page, "complete") > 0
    assert cells(page, "open") > 0
    titles = [item.get_attribute("textContent") or "" for item in page.all(".strip .cell.complete title")]
    assert any(title.startswith("2026-03-01: complete, ") for title in titles)
    go(page, console, "metrics")
    assert "held back by" in page.text("#kind-1")
    assert cells(page, "closed") > 0
    assert cells(page, "open") > 0
    go(page, console, "devices")
    assert "12 rows in" in page.text("#kind-1")
    assert cells(page, "filled") > 1


def test_the_explorer_shows_what_became_of_records(page: Browser, console: Served, jobs: ConsoleJobs) -> None:
    def fates(name: str, at: str) -> dict[str, str]:
        go(page, console, f"{name}/explorer?partition={jobs.topic(name)}/0&at={at}")
        return {
            item.text.split()[0]: item.text for item in page.all(".explored > li")
        }  # fmt: skip

    web = fates("web", "5")
    assert "in the table" in web["1"] and "/" in web["1"]
    assert "in quarantine" in web["3"] and "field is not in the schema" in web["3"] and SCRIPT in web["3"]
    assert page.driver.title != "run"
    assert "not read yet" in fates("web", "latest")["20"]
    assert "in the table" in fates("shop", "0")["0"] and "click" in fates("shop", "0")["0"]
    devices = fates("devices", "19")
    assert "this record wrote the row" in devices["19"]
    first = fates("devices", "0")
    assert "the key has no row now" in first["0"]
    assert "another record wrote this row" in first["1"]
    go(page, console, "devices/explorer/row?device=d5")
    assert "temperature" in page.text("dl.row")
    page.one("input[name=device]").clear()
    page.one("input[name=device]").send_keys("d0")
    page.click("main form button")
    page.wait(lambda: "no row with this key" in page.text(), "a key without a row")
    assert "A window sums up many records" in (fates("metrics", "0"), page.text())[1]
    link = str(page.one("a[rel=next]").get_attribute("href"))
    page.click("a[rel=next]")
    page.wait(lambda: page.driver.current_url == link and page.all(".pages"), "later records")
    page.one("input[name=at]").clear()
    page.one("input[name=at]").send_keys("yesterday")
    page.click("main form button")
    page.wait(lambda: "invalid start" in page.text(".fault"), "the fault")


def test_a_replay_from_the_page_writes_what_fits_now(
    page: Browser, console: Served, jobs: ConsoleJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lent() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        _replay(page, console, jobs)


def _replay(page: Browser, console: Served, jobs: ConsoleJobs) -> None:
    go(page, console, "web/quarantine")
    assert "10 in quarantine" in page.text()
    assert page.text(".records mark")
    jobs.write_file("web", "on: {bad_share: 1, new_column: quarantine}", "on: {bad_share: 1}")
    page.wait(lambda: _uses_the_file(console, jobs), "the changed job file")
    page.click("a[href$='/preview']")
    assert page.texts(".tile strong") == ["4", "6"]
    page.click(".act button")
    confirm(page)
    page.wait(lambda: page.all(".running"), "the running replay")
    page.driver.refresh()
    assert "Replay runs" in page.text("#replay-state")
    page.wait(lambda: "4 replayed, 6 still do not fit; 6 remain" in page.text("#replay-state"), "the result")
    page.wait(lambda: not page.all(".running"), "the end")


def _uses_the_file(console: Served, jobs: ConsoleJobs) -> bool:
    console.state.read_soon("web")
    spec = console.state.jobs["web"].spec
    return spec is not None and spec.on.new_column == "add"


@contextmanager
def member(path: Path) -> Iterator[set[int]]:
    """A process of the job's group: the numbers of the partitions that it holds now."""
    job = load_job(path)
    log, claims = open_log(job), open_group(kafka_of(job), job.claims or ClaimsSpec(), lambda event: None)
    partitions, held, stop = log.partitions(), set[int](), threading.Event()

    def hold() -> None:
        while not stop.wait(0.1):
            claims.working()
            now = {partition.number for partition in claims.held(partitions, {})}
            held.difference_update(held - now)
            held.update(now)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield held
    finally:
        stop.set()
        thread.join()
        claims.close()
        log.close()


def test_a_group_is_paused_and_resumed(page: Browser, console: Served, jobs: ConsoleJobs) -> None:
    with member(jobs.path("web")) as held:
        page.wait(lambda: held == {0, 1}, "the claims of the member")
        go(page, console, "web/claims")
        page.wait(lambda: len(page.all(".timeline rect")) >= 2, "the timeline")
        page.one("input[name=reason]").send_keys("deploy")
        page.click("form[action$='/pause'] button")
        confirm(page)
        page.wait(lambda: "Paused" in page.text(".paused") and "deploy" in page.text(".paused"), "the pause")
        page.wait(lambda: not held, "the release of every partition")
        page.click(".paused button")
        confirm(page)
        page.wait(lambda: held == {0, 1}, "new claims")
        go(page, console, "web/claims")
        assert not page.all(".paused")
        assert "ended the pause" in page.text(".events")


def test_a_verification_runs_and_its_report_is_read(page: Browser, console: Served) -> None:
    go(page, console, "shop/verify")
    page.click("input[value=values]")
    page.click("form[action$='/start'] button")
    confirm(page)
    page.wait(lambda: page.all("#verify-report .checks li"), "the report")
    assert "proven" in page.text("#verify-report header")
    assert f"{COUNT} records" in page.text("#verify-report")


def test_without_javascript_pages_of_a_job_work_and_none_is_wider_than_a_phone(page: Browser, console: Served) -> None:
    page.without_scripts()
    page.size(*PHONE)
    for name in JOBS:
        for tab in TABS:
            go(page, console, f"{name}{tab}")
            assert page.text("h1") == name, tab
            assert not page.overflows(), (name, tab)
    go(page, console, "web/quarantine")
    page.click(".reasons a")
    assert "All reasons" in page.text()
    page.click(".records a")
    assert page.text("h2").startswith("web_")
