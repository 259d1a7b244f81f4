from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.job.expressions import KAFKA_NAMES
from penstock.job.loader import OTHER_KEYS
from penstock.job.reader import keys_of
from penstock.job.spec import BlacklistEntry, JobSpec
from penstock.job.values import Part
from penstock.logs.registry import SECTIONS
from penstock.tables.export.spec import TypeSpec
from penstock.tables.registry import KINDS
from tests.unit.job.conftest import Load
from tests.unit.job.descriptors import TEXT, descriptor_set

PAGE = (Path(__file__).parents[3] / "docs" / "job-file.md").read_text(encoding="utf-8")


def keys(spec: Any) -> list[str]:
    """Every key that a job file may have, from the models themselves."""
    result: list[str] = []
    for key in keys_of(spec):
        result += [] if key.marker is Part.INLINE else [key.name]
        result += keys(key.spec) if key.spec is not None else []
    return result


DESCRIPTORS = descriptor_set(
    {
        "header.proto": {"Header": {"application_id": TEXT}},
        "event.proto": {"FsEvent": {"action": TEXT}, "GCStatisticsData": {"cause": TEXT}},
        "spark_event.proto": {"TaskEvent": {"stage": TEXT}},
        "flink_event.proto": {"TaskEvent": {"subtask": TEXT}},
    },
    package="com.criteo.hadoop.garmadon",
)
SPECS = [
    JobSpec,
    TypeSpec,
    BlacklistEntry,
    *(kind.section.spec for kind in KINDS.values()),
    *(section.spec for section in SECTIONS),
]
KEYS = sorted(
    {
        *OTHER_KEYS,
        *KINDS,
        *(section.name for section in SECTIONS),
        *(key for spec in SPECS for key in keys(spec)),
        *(f"kafka.{name}" for name in KAFKA_NAMES),
    }
)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_on_the_reference_page(key: str) -> None:
    logs = [section.name for section in SECTIONS]
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
