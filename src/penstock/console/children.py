"""Commands that the console runs as processes of their own: one of a kind per job, bounded, with their progress.

They outlive a reload of the page. What a process printed is kept until the next one of its kind.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from penstock.errors import UserError

SECONDS_MAX = 6 * 3600.0
CHILDREN_MAX = 4
"""That run at the same time, of all jobs."""
LINES_MAX = 200
LINE_CHARACTERS_MAX = 2_000
OUTPUT_BYTES_MAX = 4 * 1024 * 1024
STOP_SECONDS_MAX = 20.0


@dataclass(slots=True)
class Child:
    """A command for a job; only its own threads write."""

    command: str
    job: str
    who: str
    arguments: Sequence[str]
    started_at: float
    process: subprocess.Popen[bytes] = field(repr=False)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_MAX))
    """The newest lines of its standard error that are not its progress."""
    progress: tuple[str, int, int] | None = None
    """The step, how much of it is done, and of how much."""
    ended_at: float | None = None
    exit_code: int | None = None
    result: dict[str, Any] | None = None
    """The JSON that it printed."""
    cancelled: bool = False

    @property
    def running(self) -> bool:
        return self.ended_at is None

    def cancel(self) -> None:
        """Ask it to stop, and end it if it does not."""
        self.cancelled = True
        self.process.terminate()
        threading.Timer(STOP_SECONDS_MAX, self.process.kill).start()


class Children:
    def __init__(self, program: Sequence[str] = (sys.executable, "-m", "penstock.cli")) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._children: dict[tuple[str, str], Child] = {}

    def of(self, command: str, job: str) -> Child | None:
        """The one that runs, or the last one."""
        return self._children.get((command, job))

    def start(
        self,
        command: str,
        job: str,
        arguments: Sequence[str],
        who: str,
        changed: Callable[[Child], None],
    ) -> Child:
        """Run the arguments as a command line; `changed` is called with progress, and once it has ended.

        Raises `UserError` while another one runs.
        """
        with self._lock:
            before = self._children.get((command, job))
            if before is not None and before.running:
                raise UserError(f"{command} of {job} runs already", hint="wait for its end, or cancel it")
            if sum(child.running for child in self._children.values()) >= CHILDREN_MAX:
                raise UserError(f"{CHILDREN_MAX} commands run already", hint="wait for the end of one of them")
            process = subprocess.Popen(
                [*self._program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            child = Child(command, job, who, arguments, time.time(), process)
            self._children[command, job] = child
        threading.Thread(target=_follow, args=(child, changed), name=f"{command} {job}", daemon=True).start()
        return child

    def close(self) -> None:
        """End those that run, and wait for them."""
        running = [child for child in self._children.values() if child.running]
        for child in running:
            child.cancel()
        for child in running:
            child.process.wait()


def _follow(child: Child, changed: Callable[[Child], None]) -> None:
    assert child.process.stdout is not None and child.process.stderr is not None
    timer = threading.Timer(SECONDS_MAX, child.cancel)
    timer.daemon = True
    timer.start()
    errors = threading.Thread(target=_read_lines, args=(child, child.process.stderr, changed), daemon=True)
    errors.start()
    output = child.process.stdout.read(OUTPUT_BYTES_MAX)
    while child.process.stdout.read(OUTPUT_BYTES_MAX):
        # What is too long is dropped, so that the process does not wait for its reader.
        output = b""
    errors.join()
    child.exit_code = child.process.wait()
    timer.cancel()
    child.result = _json_object(output)
    child.ended_at = time.time()
    changed(child)


def _read_lines(child: Child, stream: IO[bytes], changed: Callable[[Child], None]) -> None:
    while line := stream.readline(LINE_CHARACTERS_MAX):
        text = line.decode(errors="backslashreplace").rstrip()
        shown = _json_object(line) or {}
        if {*shown} == {"step", "done", "total"}:
            child.progress = (str(shown["step"]), int(shown["done"]), int(shown["total"]))
        elif text:
            child.lines.append(text)
        changed(child)


def _json_object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
