"""Makes the pictures of README.md and docs/console.md: `python -m docs.screenshots`, or `make screenshots`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from penstock.console.access import Access
from penstock.console.server import served
from tests.support.browser import open_browser
from tests.support.console import fleet

IMAGES = Path(__file__).parent / "images"
PICTURES = {
    "overview": ("", (1120, 640), "light"),
    "job": ("jobs/devices", (1280, 1000), "light"),
    "phone": ("", (390, 760), "dark"),
}
"""By name: the page, the size of the screen, and the colours."""


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        served({}, Access(), history=Path(folder) / "history.sqlite") as console,
        open_browser() as browser,
    ):
        console.state.jobs.update({job.name: job for job in fleet(Path(folder), console.state.history)})
        for name, (page, size, scheme) in PICTURES.items():
            browser.reset()
            browser.size(*size)
            browser.scheme(scheme)
            browser.open(console.url + page)
            browser.wait(lambda: browser.text("#live-state") == "Live", "the stream")
            browser.driver.save_screenshot(str(IMAGES / f"{name}.png"))


if __name__ == "__main__":
    main()
