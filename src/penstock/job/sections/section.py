"""What every section of a job file is to pydantic, and how what it states goes over into a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SpecT = TypeVar("SpecT", bound="DataclassInstance")


class Section(BaseModel):
    """A mapping with known keys and no others."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    REQUIRED: ClassVar[tuple[str, ...]] = ()
    REMOVED: ClassVar[Mapping[str, str]] = {}
    """Keys of earlier versions, with what became of them."""


def filled(spec: SpecT, section: Section | None, **names: str | None) -> SpecT:
    """The spec with what the section states; `names` are the spec's own where they differ, None where it has none."""
    keys = [(key, names.get(key, key)) for key in type(section).model_fields] if section is not None else []
    return replace(spec, **stated(**{name: getattr(section, key) for key, name in keys if name is not None}))


def stated(**values: Any) -> dict[str, Any]:
    """Only what the file states: every default is written once, in the spec."""
    return {name: value for name, value in values.items() if value is not None}
