"""How far librdkafka has fetched, by its statistics: records of aborted transactions are fetched, never delivered."""

from __future__ import annotations

import json


def next_offsets(statistics: str) -> dict[tuple[str, int], int]:
    """The next offset that the client fetches of each partition that it reads, by topic and number."""
    return {
        (topic, int(number)): partition["next_offset"]
        for topic, found in json.loads(statistics)["topics"].items()
        for number, partition in found["partitions"].items()
        if "next_offset" in partition
    }
