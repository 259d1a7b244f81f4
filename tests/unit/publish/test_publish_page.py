"""The examples of the page on publishing are what is really published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from penstock.job.texts import TOPIC_NAME
from penstock.publish.formats import ENCODERS
from penstock.publish.output import PublishBucket, PublishPosition, encode_position
from penstock.publish.spec import DEFAULT_POSITIONS_TOPIC, PublishFormat
from penstock.tables.rollup.pages import sort_key
from tests.unit.publish.any_rows import ROW, table_of

PAGE = (Path(__file__).parents[3] / "docs" / "rollups.md").read_text(encoding="utf-8")
EXAMPLES = [text.split("```")[0].rstrip("\n") for text in PAGE.split("```json\n")[1:]]


def test_the_examples_are_what_is_written() -> None:
    position, opentsdb, flat = EXAMPLES
    after = json.loads(position)["after"]
    assert position.encode() == encode_position(PublishBucket("rollups", "kQ2x", 3, 8), PublishPosition(41, after))
    row = 131, 'cpuload.usage.user{"host":"host01"}', "10m", 1_700_000_400_000_000
    assert sort_key(PublishPosition(41, after)) == (41, *row)
    rows = table_of([ROW])
    assert [opentsdb.encode()] == [record.value for record in ENCODERS["opentsdb"](rows)]
    assert [flat.encode()] == [record.value for record in ENCODERS["json"](rows)]


@pytest.mark.parametrize(
    "name",
    [
        *(f"format: {name}" for name in get_args(PublishFormat)),
        DEFAULT_POSITIONS_TOPIC,
    ],
)
def test_every_format_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_there_is_an_encoder_for_every_format() -> None:
    assert set(ENCODERS) == set(get_args(PublishFormat))


def test_the_default_topic_of_positions_is_a_name_that_kafka_accepts() -> None:
    assert TOPIC_NAME.read(DEFAULT_POSITIONS_TOPIC) == DEFAULT_POSITIONS_TOPIC
