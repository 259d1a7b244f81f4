from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from penstock.job.expressions import KAFKA_NAMES
from penstock.job.sections.kind_section import file_model
from penstock.job.sections.section import Section
from penstock.logs.kafka.section import CLIENT_NUMBERS, CLIENT_WORDS
from penstock.logs.registry import SECTIONS
from penstock.tables.registry import KINDS
from tests.unit.job.conftest import Load
from tests.unit.job.descriptors import TEXT, descriptor_set

PAGE = (Path(__file__).parents[3] / "docs" / "job-file.md").read_text(encoding="utf-8")


def keys(section: type[Section]) -> list[str]:
    """Every key that a job file may have, from the models themselves."""
    found: list[str] = []
    for name, info in section.model_fields.items():
        found.append(info.alias or name)
        for kind in get_args(info.annotation):
            for choice in (kind, *get_args(kind)):
                if isinstance(choice, type) and issubclass(choice, Section):
                    found += keys(choice)
    return found


DESCRIPTORS = descriptor_set(
    {
        "header.proto": {"Header": {"application_id": TEXT}},
        "event.proto": {"FsEvent": {"action": TEXT}, "GCStatisticsData": {"cause": TEXT}},
        "spark_event.proto": {"TaskEvent": {"stage": TEXT}},
        "flink_event.proto": {"TaskEvent": {"subtask": TEXT}},
    },
    package="com.criteo.hadoop.garmadon",
)
FILE = file_model([kind.section for kind in KINDS.values()], SECTIONS)
KEYS = sorted({*keys(FILE), *CLIENT_NUMBERS, *CLIENT_WORDS, *(f"kafka.{name}" for name in KAFKA_NAMES)})


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_on_the_reference_page(key: str) -> None:
    logs = [each.name for each in SECTIONS]
    if key in (*logs, *KINDS):
        assert f"\n## {'log' if key in logs else 'table'}.{key}\n" in PAGE
    else:
        assert f"`{key}`" in PAGE


@pytest.mark.parametrize(("index", "name"), [(0, "web-requests"), (1, "shop"), (2, "garmadon")])
def test_the_examples_of_the_reference_page_load(load: Load, tmp_path: Path, index: int, name: str) -> None:
    (tmp_path / "garmadon.desc").write_bytes(DESCRIPTORS)
    example = PAGE.split("```yaml\n")[index + 1].split("```")[0]
    assert load(example).name == name


def test_every_example_of_the_reference_page_is_tried() -> None:
    assert PAGE.count("```yaml\n") == 3
