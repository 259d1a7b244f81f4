"""One browser for all tests of the console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, open_browser


@pytest.fixture(scope="session")
def one_browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Browser:
    one_browser.reset()
    return one_browser
