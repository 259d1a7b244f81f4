"""A real browser, Debian's Chromium without a screen, and what tests ask of it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
FLAGS = (
    "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "disable-dev-shm-usage", "no-first-run",
    "disable-background-networking", "disable-component-update", "disable-sync", "hide-scrollbars",
)  # fmt: skip
WAIT_SECONDS_MAX = 60.0
DESKTOP, PHONE = (1280, 900), (360, 740)

T = TypeVar("T")


class Browser:
    """A browser with one tab; every test begins with `reset`."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def reset(self) -> None:
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        self.size(*DESKTOP)
        self.scheme("light")
        self.faults()

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name: str) -> None:
        features = [
            {"name": "prefers-color-scheme", "value": name},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def without_scripts(self) -> None:
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})

    def open(self, url: str) -> None:
        self.driver.get(url)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "body") -> str:
        return _current(lambda: self.one(selector).text)

    def texts(self, selector: str) -> list[str]:
        return _current(lambda: [element.text for element in self.all(selector)])

    def click(self, selector: str) -> None:
        _current(lambda: self.one(selector).click())

    def faults(self) -> list[str]:
        """What the browser complains of: scripts that fail, and what the policy forbids."""
        entries = self.driver.execute("getLog", {"type": "browser"})["value"]
        return [entry["message"] for entry in entries if "favicon.ico" not in entry["message"]]

    def overflows(self) -> bool:
        """Whether the page is wider than the screen."""
        script = "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
        return bool(self.driver.execute_script(script))

    def wait(self, value: Callable[[], T | None], what: str) -> T:
        """The value, once there is one; elements that are replaced meanwhile are asked for again."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            try:
                result = value()
            except Exception as error:  # noqa: BLE001 - an element that was replaced between two calls
                result, fault = None, repr(error)
            else:
                fault = ""
            if result:
                return result
            assert time.monotonic() < deadline, f"{what} did not come: {fault} {self.text()}"
            time.sleep(0.05)


def _current(ask: Callable[[], T]) -> T:
    """The answer of elements on the page; a live update may replace them while they are asked."""
    while True:
        try:
            return ask()
        except StaleElementReferenceException:
            continue


@contextmanager
def open_browser() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(prefix="penstock-browser-", ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS, f"user-data-dir={profile}"):
            options.add_argument(f"--{flag}")
        driver = Chrome(options=options, service=Service(DRIVER))
        try:
            yield Browser(driver)
        finally:
            driver.quit()
