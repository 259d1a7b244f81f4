from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.job.faults import JobFileError
from penstock.job.spec import JobSpec
from penstock.tables.registry import load_job
from tests.support.tries import tries
from tests.unit.job.descriptors import GARMADON
from tests.unit.job.test_export_job import EVERYTHING as EVERY_EXPORT
from tests.unit.job.test_export_job import JSON
from tests.unit.job.test_load_job import EVERYTHING

PIECES = (
    *(
        "{",
        "}",
        "[",
        "]",
        ":",
        ": ",
        ",",
        "- ",
        "\n",
        "\n  ",
        "\t",
        "'",
        '"',
        "#",
        "&a ",
        "*a",
        "!!int ",
        "!!set ",
        "? ",
    ),
    *(
        "|",
        ">",
        "%",
        "---\n",
        "...\n",
        "null",
        "~",
        "true",
        "-1",
        "1e999",
        "9" * 40,
        ".5",
        "0x1",
        "on",
        "<<",
        "é",
        "\x00",
    ),
    *("${env:PW}", "${env:NO}", "${", "$${", "list<", "map<string,", "decimal(", "day(", "kafka.", "`"),
    *("select", "sum(", "(", ")", ";", "--", "\\ud800", "\\UFFFFFFFF", "\ufeff", "\u2028", "{a: {a: {a: 1}}}"),
)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """One of the fullest valid files after a few cuts, doublings, swaps and strange insertions."""
    text = draw(st.sampled_from([EVERYTHING, EVERY_EXPORT, JSON]))
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        action = draw(st.sampled_from(["cut", "insert", "double", "swap", "noise"]))
        other = draw(st.integers(0, len(text)))
        piece = {
            "cut": "",
            "insert": draw(st.sampled_from(PIECES)) + text[start:end],
            "double": text[start:end] * 2,
            "swap": text[other : other + 20],
            "noise": draw(st.text(max_size=5)),
        }[action]
        text = text[:start] + piece + text[end:]
    return text


def load(path: Path, content: bytes) -> JobSpec | None:
    path.write_bytes(content)
    with contextlib.suppress(JobFileError):
        return load_job(path, {"PW": "hunter2"})
    return None


@pytest.fixture(scope="module")
def job_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mutations")
    (folder / "garmadon.desc").write_bytes(GARMADON)
    return folder / "job.yaml"


@settings(max_examples=tries(100), suppress_health_check=[HealthCheck.too_slow])
@given(text=mutated())
def test_a_mutated_file_loads_or_reports_faults(job_path: Path, text: str) -> None:
    spec = load(job_path, text.encode("utf-8", "surrogatepass"))
    assert spec is None or "hunter2" not in repr(spec)


@settings(max_examples=tries(40))
@given(content=st.binary(max_size=200))
def test_any_bytes_as_a_job_file_give_faults(job_path: Path, content: bytes) -> None:
    assert load(job_path, content) is None


@settings(max_examples=tries(30))
@given(seed=st.integers(0, 2**32), text=st.sampled_from([EVERYTHING, EVERY_EXPORT]))
def test_lines_in_any_order_are_parsed(job_path: Path, seed: int, text: str) -> None:
    lines = text.splitlines()
    random.Random(seed).shuffle(lines)
    load(job_path, "\n".join(lines).encode())
