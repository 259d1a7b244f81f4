"""Processes that outlive the one that started them, known by number and time of start."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

# Boot time, from which the time of start is worked out, moves when the clock is set.
_STARTED_TOLERANCE_SECONDS = 5.0
_KILL_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for good: numbers are used again, a number with its time of start is not."""

    pid: int
    started_at: float


def spawn(command: Sequence[str], output: Path) -> ProcessId:
    """Starts a process in a session of its own, its output in a file."""
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
    """Whether this very process still runs; another process with its number does not count."""
    return _find(process) is not None


def stop(processes: Sequence[ProcessId], *, grace_seconds: float) -> None:
    """Asks the processes to end, and ends those that have not within the grace."""
    left = _end(filter(None, map(_find, processes)), signal.SIGTERM, grace_seconds)
    _end(left, signal.SIGKILL, _KILL_SECONDS_MAX)


def kill(process: ProcessId) -> None:
    """Ends the process at once, as a power cut would."""
    _end(filter(None, [_find(process)]), signal.SIGKILL, _KILL_SECONDS_MAX)


def _find(process: ProcessId) -> psutil.Process | None:
    try:
        result = psutil.Process(process.pid)
        same = abs(result.create_time() - process.started_at) < _STARTED_TOLERANCE_SECONDS
        return result if same and result.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _end(processes: Iterable[psutil.Process], number: signal.Signals, seconds_max: float) -> list[psutil.Process]:
    """Sends a signal; those that have not ended in time."""
    told = list(processes)
    for one in told:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(number)
    return list(psutil.wait_procs(told, timeout=seconds_max)[1])
