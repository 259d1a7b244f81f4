"""A terminal of a given width, and what a command leaves on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyte

LINES = 60
SECONDS_MAX = 180


def screen(command: Sequence[str], columns: int, folder: Path, environment: Mapping[str, str]) -> str:
    """Run a command in a pseudo-terminal; the lines on the screen once it has ended."""
    shown = pyte.Screen(columns, LINES)
    stream = pyte.ByteStream(shown)
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, cwd=folder, env={**variables, "TERM": "xterm", **environment}
    )
    os.close(its)
    while True:
        try:
            content = os.read(ours, 65_536)
        except OSError:
            # Linux says so when the last process has closed its end.
            break
        stream.feed(content)
    os.close(ours)
    process.wait(SECONDS_MAX)
    return "\n".join(line.rstrip() for line in shown.display).rstrip("\n") + "\n"
