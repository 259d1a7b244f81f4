"""Penstock: Kafka topics into tables, every record once, on Spark.

Functions are imported when they are first used: importing the package loads no Spark and starts nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.api import check, run, session, status, verify
    from penstock.reading import read

__all__ = ["check", "read", "run", "session", "status", "verify"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("penstock.reading" if name == "read" else "penstock.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
