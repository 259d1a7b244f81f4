"""Penstock: Kafka topics into tables, every record once, on Spark.

`penstock.read` is imported when it is first used: importing the package loads no Spark and starts nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.reading import read

__all__ = ["read"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("penstock.reading"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
