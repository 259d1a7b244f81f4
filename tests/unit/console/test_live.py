"""Live updates: what open pages learn, and when their streams end."""

from __future__ import annotations

import asyncio

from penstock.console.live import PAGES_MAX, Live


def test_changes_of_a_job_since_the_last_event_are_one_event_for_every_page() -> None:
    async def events() -> list[list[str]]:
        live = Live()
        pages = [live.stream(), live.stream()]
        received = [[await anext(page)] for page in pages]
        for job in ("web", "orders", "web"):
            await asyncio.to_thread(live.publish, job)
        for page, texts in zip(pages, received, strict=True):
            texts.append(await anext(page))
        assert len(live) == 2
        for page in pages:
            await page.aclose()
        assert len(live) == 0
        return received

    assert asyncio.run(events()) == [["retry: 3000\n\n", 'data: ["orders", "web"]\n\n']] * 2


def test_streams_end_when_the_console_stops() -> None:
    async def texts() -> list[str]:
        live = Live()
        page = live.stream()
        first = await anext(page)
        live.close()
        return [first, *[text async for text in page]]

    assert asyncio.run(texts()) == ["retry: 3000\n\n"]
    assert PAGES_MAX >= 200
