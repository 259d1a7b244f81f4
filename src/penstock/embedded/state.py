"""The state file of an embedded cluster: the layout, and which processes run it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.embedded.layout import Broker, Layout
from penstock.errors import UserError

STATE_NAME = "cluster.json"
STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for good: numbers are used again, a number with its time of start is not."""

    pid: int
    started_at: float


@dataclass(frozen=True, slots=True)
class State:
    """What the state file says; a process that it names may have ended since."""

    layout: Layout
    processes: Mapping[int, ProcessId]


def write_state(folder: Path, state: State) -> None:
    """Replaces the state file in one act."""
    content = {
        "version": STATE_VERSION,
        "cluster_id": state.layout.cluster_id,
        "bootstrap": state.layout.bootstrap,
        "brokers": [asdict(broker) for broker in state.layout.brokers],
        "processes": {str(number): asdict(process) for number, process in state.processes.items()},
    }
    aside = folder / f"{STATE_NAME}.{os.getpid()}"
    aside.write_text(json.dumps(content, indent=1), encoding="utf-8")
    aside.replace(folder / STATE_NAME)


def read_state(folder: Path) -> State | None:
    """The state of the folder, or None if no cluster was ever started in it."""
    path = folder / STATE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        content = json.loads(text)
        if content["version"] != STATE_VERSION:
            raise ValueError(f"version {content['version']}")
        brokers = tuple(Broker(**broker) for broker in content["brokers"])
        processes = {int(number): ProcessId(**process) for number, process in content["processes"].items()}
        return State(Layout(content["cluster_id"], brokers), processes)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            "the state file of the embedded broker cannot be read",
            detail=f"{path}: {error}",
            hint=f"stop the broker by hand if it still runs, then delete {folder}",
        ) from error
