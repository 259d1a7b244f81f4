"""docs/job-file.md is generated from the specs of the job file."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from docs.job_file import generate
from penstock.job.expressions import FUNCTION_NAMES, KAFKA_NAMES
from penstock.job.spec import DecodeFormat

TEXT = generate.PAGE.read_text(encoding="utf-8")


def test_page_is_what_the_generator_writes() -> None:
    assert generate.page() == TEXT, "run `make docs`"


def test_no_sentence_describes_a_key_that_does_not_exist() -> None:
    assert not list(generate.unused_notes())


def test_key_without_a_sentence_is_refused() -> None:
    with pytest.raises(KeyError, match="no sentence for path"):
        generate.table("table.keyed", generate.sections()["table.keyed"], {})


def test_values_come_from_the_model() -> None:
    rows = {f"{section}.{row.name}": row for section, keys in generate.sections().items() for row in keys}
    assert (rows["flush.allowed_latency"].type, rows["flush.allowed_latency"].default) == ("duration", "1m")
    assert (rows["flush.max_bytes_per_batch"].type, rows["flush.max_bytes_per_batch"].default) == ("size", "1GiB")
    assert (rows["on.gap"].type, rows["on.gap"].default) == ("`fail`, `record`", "fail")
    assert (rows["on.bad_share"].type, rows["on.bad_share"].default) == ("number", "0.1")
    assert rows["table.rollup.windows"].default == "[1m, 10m, 1h, 24h]"
    assert rows["table.rollup.update_grace"].default == "0s"
    assert rows["log.kafka.bootstrap"].default == generate.REQUIRED
    assert rows["job file.route"].type == "section"


@pytest.mark.parametrize("name", [*FUNCTION_NAMES, *(f"kafka.{name}" for name in KAFKA_NAMES), *get_args(DecodeFormat)])
def test_every_function_kafka_field_and_decoder_is_on_the_page(name: str) -> None:
    assert re.search(rf"`{re.escape(name)}[`(]", TEXT)
