"""What every section of a job file is to pydantic, and how what it states goes over into a spec."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping with known keys and no others."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    REQUIRED: ClassVar[tuple[str, ...]] = ()


def stated(**values: Any) -> dict[str, Any]:
    """Only what the file states: every default is written once, in the spec."""
    return {name: value for name, value in values.items() if value is not None}
