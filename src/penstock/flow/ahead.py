"""Reading one batch ahead: Spark's JVM fills the next batch while the task decodes and writes this one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

_END = object()
_POLL_SECONDS = 0.1


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items in the same order, the next one fetched in a thread of its own; errors come at their place."""
    handed: queue.Queue[object] = queue.Queue(maxsize=1)
    stopped = threading.Event()

    def put(item: object) -> bool:
        while not stopped.is_set():
            try:
                handed.put(item, timeout=_POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False

    def fetch() -> None:
        try:
            for item in items:
                if not put(item):
                    return
            put(_END)
        except BaseException as error:  # noqa: BLE001, the top of a thread: the reader raises it
            put(_Failed(error))

    threading.Thread(target=fetch, name="one ahead", daemon=True).start()
    try:
        while (item := handed.get()) is not _END:
            if isinstance(item, _Failed):
                raise item.error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error
