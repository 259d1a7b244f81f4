"""A real process of an export over a made-up log, without Kafka and Spark: `python -m tests.support.export_process`.

Arguments: folder, format, token, records per partition. The log is the same for every process; a longer one has more
records at its end. The process runs until nothing is left that can be done, and dies at its armed failpoint.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from penstock.failpoints import noop
from penstock.tables.registry import failpoint as armed_failpoint
from tests.support.export_world import ExportWorld

TYPES = ("A", "B", "C", "D")
BATCH = 24
"""Records of one batch, over both partitions."""
SEED = 20


def export_world(folder: Path, form: str, records: int) -> ExportWorld:
    """The export of a log with `records` records in each of two partitions; days follow each other."""
    world = ExportWorld(folder, form, types=dict.fromkeys(TYPES, ""))
    world.sections["days"] = "complete_after: 1s"
    world.sections["flush"] = f"allowed_latency: 1ms, max_messages_per_batch: {BATCH}"
    for partition in world.partitions:
        rng = random.Random(f"{SEED} {partition.number}")
        for offset in range(records):
            world.send(rng.choice("ABCDabX"), partition, day=offset // 20 + rng.randrange(2))
    return world


def main(folder: str, form: str, token: str, records: str) -> int:
    failpoint = armed_failpoint()
    world = export_world(Path(folder), form, int(records))
    world.run(int(token), failpoint.at_step if failpoint else noop, failpoint)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
