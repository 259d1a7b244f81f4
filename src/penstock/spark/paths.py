"""The one place that reads where Penstock keeps what it downloads and what it runs."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The folder of jars and of the embedded broker: `$PENSTOCK_HOME`, else `~/.cache/penstock`."""
    chosen = os.environ.get("PENSTOCK_HOME")
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".cache" / "penstock"
