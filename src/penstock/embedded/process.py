"""Processes that outlive the one that started them, identified by pid and start time."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

# Boot time, from which the start time is computed, moves when the clock is set.
_STARTED_TOLERANCE_SECONDS = 5.0
_KILL_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process: pids are reused, a pid with its start time is not."""

    pid: int
    started_at: float


def spawn(command: Sequence[str], output: Path) -> ProcessId:
    """Start a process in a session of its own, its output in a file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    pid = os.posix_spawn(
        command[0],
        list(command),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    return ProcessId(pid, psutil.Process(pid).create_time())


def is_running(process: ProcessId) -> bool:
    """Whether this process still runs; another one with the same pid does not count."""
    return _find(process) is not None


def stop(process: ProcessId, *, grace_seconds: float) -> None:
    """Ask the process to end, and kill it if it has not ended within the grace."""
    if not _end(process, signal.SIGTERM, grace_seconds):
        kill(process)


def kill(process: ProcessId) -> None:
    """End the process at once, as a power cut would."""
    _end(process, signal.SIGKILL, _KILL_SECONDS_MAX)


def _find(process: ProcessId) -> psutil.Process | None:
    try:
        result = psutil.Process(process.pid)
        same = abs(result.create_time() - process.started_at) < _STARTED_TOLERANCE_SECONDS
        return result if same and result.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _end(process: ProcessId, number: signal.Signals, seconds_max: float) -> bool:
    """Send a signal; whether the process has ended in time."""
    running = _find(process)
    if running is None:
        return True
    with suppress(psutil.NoSuchProcess):
        running.send_signal(number)
    return not psutil.wait_procs([running], timeout=seconds_max)[1]
