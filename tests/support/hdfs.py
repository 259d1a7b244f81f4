"""A real HDFS for tests: a NameNode and two DataNodes in one Java process, and a wire to them that can be cut."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.spark.jars import JarSet, java_command, resolve
from tests.support.processes import free_port

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 20.0
ADMIN_SECONDS_MAX = 120.0
SUPERUSER = "hdfs"
"""Permissions do not apply to it; tests run as another user."""
HOME = "/tests"
"""A folder that everybody may write to."""
_PAUSE_SECONDS = 0.05
_HEAP_MIB_MAX = 384
_MANAGER = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
_DATANODES = 2
_SETTINGS = {
    "dfs.permissions.enabled": "true",
    "dfs.replication": str(_DATANODES),
    # Else a NameNode lets a file be closed only when a DataNode has reported its last block, and the client waits half
    # a second before it asks again. It needs more than one DataNode.
    "dfs.namenode.file.close.num-committed-allowed": "1",
}

_OPEN_HOME = """
import sys
from hdfs_native import Client
client = Client(sys.argv[1], {})
client.mkdirs(sys.argv[2], 0o777, True)
client.set_permission(sys.argv[2], 0o777)
"""


class HdfsCluster:
    """A NameNode and its DataNodes on free ports of the loopback, with permissions on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._classes = ":".join(str(item) for item in (folder / "conf", *resolve(JarSet.HDFS)))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    def url(self, name: str) -> str:
        """A folder that everybody may create."""
        return f"{self.address}{HOME}/{name}"

    def __enter__(self) -> HdfsCluster:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        (self._folder / "conf").mkdir(parents=True)
        # The command line tools require the file, whatever is in it.
        (self._folder / "conf" / "core-site.xml").write_text("<configuration/>")
        ready, output = self._folder / "ready.xml", self._folder / "output.txt"
        settings = _SETTINGS | {"hdfs.minidfs.basedir": str(self._folder / "data")}
        options = [argument for name, value in settings.items() for argument in ("-D", f"{name}={value}")]
        command = [
            *self._java(_MANAGER),
            *("-nomr", "-format", "-datanodes", str(_DATANODES), "-nnport", str(self.port), "-writeConfig", str(ready)),
            *options,
        ]
        with output.open("wb") as sink:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=_superuser(), cwd=self._folder
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"HDFS did not start:\n{output.read_text(errors='replace')[-3000:]}")
            time.sleep(_PAUSE_SECONDS)
        opening = [sys.executable, "-c", _OPEN_HOME, self.address, HOME]
        subprocess.run(opening, env=_superuser(), check=True, timeout=START_SECONDS_MAX)

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def admin(self, *arguments: str) -> None:
        """What `hdfs dfsadmin` does, such as quotas."""
        self._run("org.apache.hadoop.hdfs.tools.DFSAdmin", *arguments)

    def shell(self, *arguments: str) -> None:
        """What `hdfs dfs` does, as the superuser."""
        self._run("org.apache.hadoop.fs.FsShell", *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._java(program), "-fs", self.address, *arguments]
        done = subprocess.run(
            command, env=_superuser(), check=False, capture_output=True, text=True, timeout=ADMIN_SECONDS_MAX
        )
        assert done.returncode == 0, done.stderr

    def _java(self, program: str) -> list[str]:
        return [str(java_command()), "-XX:+UseSerialGC", f"-Xmx{_HEAP_MIB_MAX}m", "-cp", self._classes, program]


class Wire:
    """Passes bytes on between clients and a port of this machine, until a request contains `cut_after`."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut_after: bytes | None = None
        """The request with these bytes still arrives; its answer, and the connection with it, is lost. Once."""
        self.cuts = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for item in (self._listener, *self._open):
            with suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._behind))
                self._open += [near, far]
                lost = threading.Event()
                threading.Thread(target=self._there, args=(near, far, lost), daemon=True).start()
                threading.Thread(target=self._back, args=(near, far, lost), daemon=True).start()

    def _there(self, near: socket.socket, far: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := near.recv(65536):
                if self.cut_after is not None and self.cut_after in data:
                    self.cut_after = None
                    lost.set()
                far.sendall(data)

    def _back(self, near: socket.socket, far: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := far.recv(65536):
                if lost.is_set():
                    self.cuts += 1
                    break
                near.sendall(data)
        for item in (near, far):
            with suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire_to(cluster: HdfsCluster) -> Iterator[Wire]:
    wire = Wire(cluster.port)
    try:
        yield wire
    finally:
        wire.close()


def _superuser() -> dict[str, str]:
    return {**os.environ, "HADOOP_USER_NAME": SUPERUSER}
