from __future__ import annotations

import pytest

from penstock.job.faults import InvalidValueError
from penstock.job.values import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("60s", 60.0), ("5m", 300.0), ("1h", 3600.0), ("2d", 172800.0), ("1.5h", 5400.0), ("10 s", 10.0)],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "60", "s", "-1s", "1 minute", "1m30s", "1S", "1e3s", "٣s", "9" * 40 + "s"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("1024", 1024), ("128MiB", 134217728), ("1GiB", 1073741824), ("10MB", 10000000), ("1.5KiB", 1536), ("7 B", 7)],
)
def test_a_size_is_bytes_or_a_number_and_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "128Mb", "128mib", "-1MB", "1,5MB", "1_000"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_size(text)
