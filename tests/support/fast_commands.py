"""A `penstock` for shell scripts of tests that starts at once: it is forked from a process that has imported Penstock.

The script that is written here has the command forked with its own pipes (`tests/support/forked.py`) and ends with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.worker_daemon import ADDRESS_NAME

_SCRIPT = f"""\
#!{sys.executable} -IS
import json, os, socket, sys

if sys.argv[1:3] == ["wal", "serve"] or sys.argv[1:2] == ["console"]:
    # The shell that started it ends it by its pid.
    os.execv({sys.executable!r}, [{sys.executable!r}, "-m", "penstock.cli", *sys.argv[1:]])
request = {{"module": "penstock.cli", "arguments": sys.argv[1:]}}
request |= {{"environment": dict(os.environ), "folder": os.getcwd()}}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect("\\0" + os.environ[{ADDRESS_NAME!r}])
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    sys.exit(int(server.recv(64) or 1))
"""


def write_penstock(folder: Path) -> None:
    """Write the command into a folder that is put on PATH."""
    folder.mkdir()
    script = folder / "penstock"
    script.write_text(_SCRIPT, encoding="utf-8")
    script.chmod(0o755)
