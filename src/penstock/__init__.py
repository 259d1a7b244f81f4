"""Penstock: Kafka topics into tables, every record once, on Spark.

Functions are imported when they are first used: importing the package loads no Spark and starts nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.api import check, run, session, status, verify
    from penstock.reading import read
    from penstock.writing import foreach_batch, write

__all__ = ["check", "foreach_batch", "read", "run", "session", "status", "verify", "write"]
_MODULES = {"read": "penstock.reading", "write": "penstock.writing", "foreach_batch": "penstock.writing"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(_MODULES.get(name, "penstock.api")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
