"""The console in a real browser: live, on a phone, in the dark, by keyboard, without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from penstock.console.access import Access
from penstock.console.server import Served, served
from penstock.console.state import WatchedJob
from penstock.embedded.broker import Cluster
from penstock.job.spec import kafka_of
from penstock.logs.kafka.log import KafkaLog
from tests.support.browser import PHONE, Browser
from tests.support.console import fleet
from tests.support.kafka import Produce, Topics
from tests.support.small_table import Load, SmallTable, small_job

TOKEN = "a-token-for-reading-0123"
FOCUSED = "const item = document.activeElement; return [item.innerText, getComputedStyle(item).outlineStyle]"
PAGES = ("", "activity", "jobs/devices", "jobs/devices/settings", "jobs/devices/table")


@contextmanager
def showing(folder: Path, *jobs: WatchedJob, access: Access | None = None) -> Iterator[Served]:
    """A console of these jobs; without any of those of the fleet, which no poller reads."""
    with served({job.name: job for job in jobs}, access or Access(), history=folder / "history.sqlite") as console:
        if not jobs:
            console.state.jobs.update({job.name: job for job in fleet(folder, console.state.history)})
        yield console


def has_lag(browser: Browser, lag: int) -> bool:
    """Whether the first tile of a job page shows this lag."""
    return browser.text("#tiles .tile strong") == str(lag)


def test_the_overview_leads_to_the_page_of_a_job_and_nothing_is_forbidden_or_fails(
    browser: Browser, tmp_path: Path
) -> None:
    with showing(tmp_path) as console:
        browser.open(console.url)
        verdicts = browser.texts(".jobs .verdict")
        assert verdicts == ["ERR", "STOP", "WARN", "OK", "OK", "OK", "OK"]
        assert len(browser.all(".jobs .spark .dot")) == 7
        browser.click(".jobs a[href='/jobs/devices']")
        browser.wait(lambda: browser.all(".pipe strong"), "the page of the job")
        assert [text.split()[0] for text in browser.texts(".pipe strong")] == [
            "Log", "Claim", "Plan", "Write", "Commit", "Mirror",
        ]  # fmt: skip
        assert len(browser.all("#charts svg path.line")) >= 3
        for page in PAGES:
            browser.open(console.url + page)
            browser.wait(
                lambda: browser.text("#live-state") == "Live", "the stream"
            ) if page != "jobs/devices/settings" else None
        assert browser.faults() == []


def test_a_broker_that_goes_away_is_shown_and_the_job_is_well_once_it_is_back(browser: Browser, tmp_path: Path) -> None:
    with Cluster.start(tmp_path / "kafka") as cluster:
        table = SmallTable(small_job(cluster.bootstrap, Topics(cluster.bootstrap)(), tmp_path))
        [partition] = KafkaLog(kafka_of(table.job)).partitions()
        table.start(partition)
        job = WatchedJob("orders", None, table.job)
        with showing(tmp_path, job) as console:
            browser.open(console.url)

            def shows(verdict: str) -> bool:
                console.state.read_soon("orders")
                return browser.texts(".jobs .verdict") == [verdict]

            browser.wait(partial(shows, "OK"), "the first status")
            cluster.kill()
            browser.wait(partial(shows, "ERR"), "the broker to be missed")
            assert "does not answer" in browser.text(".jobs")
            cluster.restart()
            browser.wait(partial(shows, "OK"), "the broker to be back")


def test_lag_changes_on_the_open_page_while_a_load_runs(
    browser: Browser, tmp_path: Path, topic: Topics, produce: Produce
) -> None:
    orders = topic()
    table = SmallTable(small_job(topic.bootstrap, orders, tmp_path))
    log = KafkaLog(kafka_of(table.job))
    [partition] = log.partitions()
    table.start(partition)
    produce(orders, [b'{"id": 1}'] * 40)
    job = WatchedJob("orders", None, table.job)
    with showing(tmp_path, job) as console:
        browser.open(f"{console.url}jobs/orders")
        browser.driver.execute_script("window.untouched = true")
        browser.wait(partial(has_lag, browser, 40), "a lag of 40")
        for start in range(0, 30, 10):
            table.commit(partition, Load(start, start + 10, list(range(start, start + 10))))
            console.state.read_soon("orders")
            browser.wait(partial(has_lag, browser, 30 - start), f"a lag of {30 - start}")
        produce(orders, [b'{"id": 1}'] * 25)
        browser.wait(partial(has_lag, browser, 35), "a lag of 35, from the poller alone")
        assert len(browser.all("#commits tbody tr")) == 3
        assert "static" in browser.text("#partitions tbody tr")
        assert browser.driver.execute_script("return window.untouched") is True
        assert browser.faults() == []
    log.close()


@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_wider_than_a_phone(browser: Browser, tmp_path: Path, page: str) -> None:
    with showing(tmp_path) as console:
        browser.size(*PHONE)
        browser.open(console.url + page)
        assert not browser.overflows()
        headings = [item for item in browser.all("h1") if item.is_displayed()]
        assert len(headings) == 1


def test_dark_follows_the_browser_and_the_button_overrides_it_for_good(browser: Browser, tmp_path: Path) -> None:
    def is_dark() -> bool:
        colour = browser.one("body").value_of_css_property("background-color")
        return max(map(int, re.findall(r"\d+", colour)[:3])) < 128

    with showing(tmp_path) as console:
        browser.open(console.url)
        assert not is_dark()
        browser.scheme("dark")
        assert is_dark()
        button = browser.one(".theme")
        button.click()
        assert button.text == "Theme: light" and not is_dark()
        browser.open(f"{console.url}jobs/devices")
        assert not is_dark()
        browser.scheme("light")
        browser.click(".theme")
        assert is_dark()


def test_without_javascript_pages_links_forms_and_logins_work(browser: Browser, tmp_path: Path) -> None:
    with showing(tmp_path, access=Access(read_tokens={TOKEN: "rita"})) as console:
        browser.without_scripts()
        browser.open(f"{console.url}jobs/web-requests")
        browser.one("#token").send_keys("wrong")
        browser.click("main button")
        browser.wait(lambda: "Wrong token" in browser.text(), "the refusal")
        browser.one("#token").send_keys(TOKEN)
        browser.click("main button")
        browser.wait(lambda: len(browser.all(".jobs .verdict")) == 7, "the overview")
        browser.click(".jobs a[href='/jobs/web-requests']")
        browser.wait(lambda: browser.text("h1") == "web-requests", "the page of the job")
        browser.one(".filter input[name=q]").send_keys("web/7")
        browser.click(".filter button")
        browser.wait(lambda: "1 of 8 partitions" in browser.text("#partitions"), "the partition")
        browser.click(".range a[href='?range=24h']")
        browser.wait(lambda: browser.text(".range a[aria-current]") == "24h", "the longer range")
        browser.click(".chart summary")
        assert len(browser.all(".chart table tr")) > 10
        browser.click(".tools form button")
        browser.wait(lambda: browser.text("h1") == "Log in", "the login")
        browser.open(console.url)
        assert browser.text("h1") == "Log in"


def test_the_keyboard_reaches_everything_with_a_visible_focus(browser: Browser, tmp_path: Path) -> None:
    with showing(tmp_path) as console:
        browser.open(console.url)
        reached = []
        for _ in range(12):
            ActionChains(browser.driver).send_keys(Keys.TAB).perform()
            text, outline = browser.driver.execute_script(FOCUSED)
            assert outline == "solid"
            reached.append(text)
        assert reached[0] == "Skip to the content"
        assert [text for text in reached if text in ("payments", "metrics-rollup", "devices")] == [
            "payments", "metrics-rollup", "devices",
        ]  # fmt: skip
        browser.driver.execute_script("document.querySelector('.jobs a').focus()")
        ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
        browser.wait(lambda: browser.text("h1") == "payments", "the page of the job")


def test_a_console_that_goes_away_is_shown_and_the_page_follows_it_once_it_is_back(
    browser: Browser, tmp_path: Path
) -> None:
    with showing(tmp_path) as console:
        port = console.state.access.port
        browser.open(console.url)
        browser.driver.execute_script("window.untouched = true")
        browser.wait(lambda: browser.text("#live-state") == "Live", "the stream")
    browser.wait(lambda: browser.text("#live-state") == "Not live", "the end of the stream")
    with showing(tmp_path, access=Access(port=port)):
        browser.wait(lambda: browser.text("#live-state") == "Live", "the stream")
        # It is the same page: only what is live was replaced.
        assert browser.driver.execute_script("return window.untouched") is True
