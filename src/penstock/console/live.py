"""Changes as server-sent events: a page learns that a job changed, and asks for itself again."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from penstock.console.access import reading

PING_SECONDS = 15.0
PAGES_MAX = 500
"""Open streams; further pages are shown without live updates."""


class Live:
    """Passes the names of changed jobs from any thread to every open page."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._pages: dict[asyncio.Event, tuple[asyncio.AbstractEventLoop, set[str]]] = {}

    def publish(self, job: str) -> None:
        with self._lock:
            for event, (loop, changed) in self._pages.items():
                changed.add(job)
                if not loop.is_closed():
                    loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """End every stream; pages connect again on their own."""
        self._closed = True
        self.publish("")

    def __len__(self) -> int:
        return len(self._pages)

    async def stream(self) -> AsyncGenerator[str]:
        """The changes since the last event; several changes of a job are one."""
        event = asyncio.Event()
        with self._lock:
            self._pages[event] = (asyncio.get_running_loop(), set())
        try:
            yield "retry: 3000\n\n"
            while not self._closed:
                try:
                    await asyncio.wait_for(event.wait(), PING_SECONDS)
                except TimeoutError:
                    yield ": ping\n\n"
                    continue
                with self._lock:
                    loop, changed = self._pages[event]
                    self._pages[event] = (loop, set())
                    event.clear()
                if not self._closed:
                    yield f"data: {json.dumps(sorted(changed))}\n\n"
        finally:
            with self._lock:
                del self._pages[event]


@reading
async def live(request: Request) -> Response:
    hub: Live = request.app.state.console.live
    if len(hub) >= PAGES_MAX:
        return Response("too many open pages", 503)
    return StreamingResponse(hub.stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


routes = [Route("/live", live)]
