"""The state file of an embedded cluster: the layout, and which processes run it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from penstock.embedded.layout import Broker, Layout
from penstock.errors import UserError

STATE_NAME = "cluster.json"


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for good: numbers are used again, a number with its time of start is not."""

    pid: int
    started_at: float


class State(msgspec.Struct, frozen=True):
    """What the state file says; a process that it names may have ended since."""

    version: Literal[1]
    cluster_id: str
    bootstrap: str
    """For people who look into the file."""
    brokers: tuple[Broker, ...]
    processes: Mapping[int, ProcessId]

    @property
    def layout(self) -> Layout:
        return Layout(self.cluster_id, self.brokers)


def write_state(folder: Path, layout: Layout, processes: Mapping[int, ProcessId]) -> None:
    """Replaces the state file in one act."""
    content = State(1, layout.cluster_id, layout.bootstrap, layout.brokers, processes)
    aside = folder / f"{STATE_NAME}.{os.getpid()}"
    aside.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))
    aside.replace(folder / STATE_NAME)


def read_state(folder: Path) -> State | None:
    """The state of the folder, or None if no cluster was ever started in it."""
    path = folder / STATE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise UserError(
            "the state file of the embedded broker cannot be read",
            detail=f"{path}: {error}",
            hint=f"stop the broker by hand if it still runs, then delete {folder}",
        ) from error
