"""The page about the library: its example runs as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.kafka import Produce, Topics

PAGE = Path(__file__).parents[3] / "docs" / "claims-library.md"


def test_the_example_of_the_page_runs_against_a_real_broker(bootstrap: str, topic: Topics, produce: Produce) -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    name = topic(partitions=2)
    wanted = produce(name, [f"order {number}" for number in range(10)])
    script = example.replace('"orders"', repr(name)).replace('"billing"', repr(f"billing of {name}"))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "KAFKA_BROKERS": bootstrap},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert sorted((place, int(offset)) for place, offset, _ in printed) == sorted(
        (f"{name}/{partition}", offset) for partition, offset in wanted
    )
