from __future__ import annotations

from pathlib import Path

import pytest

from penstock.job.border import JobFile, Section
from penstock.job.expressions import KAFKA_NAMES
from penstock.job.kafka_checks import CLIENT_NUMBERS, CLIENT_WORDS
from tests.unit.job.conftest import Load

PAGE = (Path(__file__).parents[3] / "docs" / "job-file.md").read_text(encoding="utf-8")


def keys(section: type[Section]) -> list[str]:
    """Every key that a job file may have, from the models themselves."""
    found: list[str] = []
    for name, info in section.model_fields.items():
        found.append(info.alias or name)
        for kind in getattr(info.annotation, "__args__", ()):
            if isinstance(kind, type) and issubclass(kind, Section):
                found += keys(kind)
    return found


KEYS = sorted({*keys(JobFile), *CLIENT_NUMBERS, *CLIENT_WORDS, *(f"kafka.{name}" for name in KAFKA_NAMES)})


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_on_the_reference_page(key: str) -> None:
    if key in ("kafka", "delta"):
        assert f"\n## {'log' if key == 'kafka' else 'table'}.{key}\n" in PAGE
    else:
        assert f"`{key}`" in PAGE


def test_the_example_of_the_reference_page_loads(load: Load) -> None:
    example = PAGE.split("```yaml\n")[1].split("```")[0]
    assert load(example).name == "web-requests"
