"""The connections of a server: how many there are, and none that takes longer than its time, however it idles."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass


@dataclass(slots=True)
class _Connection:
    deadline: float
    busy: bool = False


class Connections:
    """Open connections with their deadlines, and the bytes that their requests hold in memory."""

    def __init__(self, connections_max: int, seconds_max: float, bytes_max: int) -> None:
        self._connections_max = connections_max
        self._seconds_max = seconds_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._open: dict[socket.socket, _Connection] = {}
        self._changed = threading.Condition()
        self._stopping = False

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: socket.socket) -> bool:
        """Count a new connection; False if there is no room for it."""
        with self._changed:
            if self._stopping or len(self._open) >= self._connections_max:
                return False
            self._open[connection] = _Connection(time.monotonic() + self._seconds_max)
            return True

    def waiting(self, connection: socket.socket) -> bool:
        """A connection waits for its next request, which gets its full time; False if the server stops."""
        with self._changed:
            if connection in self._open:
                self._open[connection] = _Connection(time.monotonic() + self._seconds_max)
            self._changed.notify_all()
            return not self._stopping

    def busy(self, connection: socket.socket) -> None:
        """A request has arrived and is being answered."""
        with self._changed:
            if connection in self._open:
                self._open[connection].busy = True

    def leave(self, connection: socket.socket) -> None:
        with self._changed:
            self._open.pop(connection, None)
            self._changed.notify_all()

    def take(self, size: int) -> bool:
        """Count bytes that are about to be read or sent; False if there is no room for them."""
        with self._changed:
            if self._bytes + size > self._bytes_max:
                return False
            self._bytes += size
            return True

    def give_back(self, size: int) -> None:
        with self._changed:
            self._bytes -= size

    def end_overdue(self) -> None:
        """Cut off connections that are past their deadline: half a request, or an answer that nobody reads."""
        now = time.monotonic()
        with self._changed:
            overdue = [each for each, state in self._open.items() if state.deadline < now]
        for each in overdue:
            _cut(each)

    def drain(self, seconds_max: float) -> None:
        """Stop: cut off idle connections, wait for the requests that are being answered, then cut off the rest."""
        deadline = time.monotonic() + seconds_max
        with self._changed:
            self._stopping = True
            while any(state.busy for state in self._open.values()) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            left_over = list(self._open)
        for each in left_over:
            _cut(each)


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
