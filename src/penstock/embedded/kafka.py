"""How Kafka's own programs are called: formatting the storage, and the server."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.embedded.layout import Broker, Layout, log4j_properties, server_properties
from penstock.errors import TransientError
from penstock.spark.jars import JarSet, java_command, resolve

HEAP_MIB_MAX = 512
FORMAT_SECONDS_MAX = 120
LOG_LINES_SHOWN = 12
_META = "meta.properties"


def new_cluster_id() -> str:
    """A random id in the form that Kafka wants: 16 bytes in URL-safe base 64, not beginning with a dash."""
    while (text := secrets.token_urlsafe(16)).startswith("-"):
        pass
    return text


def prepare(layout: Layout, root: Path, settings: Mapping[str, str]) -> None:
    """Writes the settings of every broker, and formats the storage of those that have none."""
    for broker in layout.brokers:
        broker.folder(root).mkdir(parents=True, exist_ok=True)
        properties = broker.settings_file(root)
        properties.touch(mode=0o600)
        properties.write_text(server_properties(layout, broker, root, settings), encoding="utf-8")
        _log4j_file(broker, root).write_text(log4j_properties(broker, root), encoding="utf-8")
    unformatted = [one for one in layout.brokers if not (one.data_folder(root) / _META).exists()]
    with ThreadPoolExecutor(max_workers=len(layout.brokers)) as pool:
        list(pool.map(lambda broker: _format(layout.cluster_id, broker, root), unformatted))


def server_command(broker: Broker, root: Path) -> list[str]:
    return [*_java(broker, root), f"-Xmx{HEAP_MIB_MAX}m", "kafka.Kafka", str(broker.settings_file(root))]


def output_file(broker: Broker, root: Path) -> Path:
    """What the Java process prints before Kafka's own log begins."""
    return broker.folder(root) / "output.txt"


def last_lines(broker: Broker, root: Path) -> str:
    """The end of what a broker printed and logged, for an error text."""
    lines: list[str] = []
    for path in (output_file(broker, root), broker.log_file(root)):
        if path.exists():
            lines += path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    return "\n    ".join(["its last lines:", *lines]) if lines else "it printed nothing"


def _format(cluster_id: str, broker: Broker, root: Path) -> None:
    arguments = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(broker.settings_file(root))]
    try:
        answer = subprocess.run(
            [*_java(broker, root), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FORMAT_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TransientError(f"formatting took longer than {FORMAT_SECONDS_MAX} s", detail=str(root)) from error
    if answer.returncode != 0:
        raise TransientError(
            "the storage of the embedded broker could not be formatted",
            detail=(answer.stdout + answer.stderr).strip(),
            hint=f"check that {root} can be written and has room",
        )


def _java(broker: Broker, root: Path) -> Sequence[str]:
    jars = os.pathsep.join(str(jar) for jar in resolve(JarSet.BROKER))
    return [
        str(java_command()),
        # A small broker on a shared machine: fewer collector threads, and no wait for entropy or a display.
        *("-XX:+UseSerialGC", "-Djava.awt.headless=true"),
        f"-Dlog4j2.configurationFile={_log4j_file(broker, root).as_uri()}",
        *("-cp", jars),
    ]


def _log4j_file(broker: Broker, root: Path) -> Path:
    return broker.folder(root) / "log4j2.properties"
