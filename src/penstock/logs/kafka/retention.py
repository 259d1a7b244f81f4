"""How long a topic keeps its records, and which of them will be gone before long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.logs.kafka.topics import KafkaTopics
from penstock.logs.log import Bounds, Partition


@dataclass(frozen=True, slots=True)
class Retention:
    """When a topic lets go of records: after a time, beyond a size, or never."""

    seconds: float | None = None
    by_size: bool = False

    @staticmethod
    def of(settings: Mapping[str, str]) -> Retention:
        """What the settings of a topic say; one that is only compacted loses no key's last record to time or size."""
        if "delete" not in settings["cleanup.policy"]:
            return Retention()
        keeps_ms = int(settings["retention.ms"])
        return Retention(keeps_ms / 1000 if keeps_ms >= 0 else None, int(settings["retention.bytes"]) >= 0)


def expiring_offsets(
    log: KafkaTopics, bounds: Mapping[Partition, Bounds], percent: float, now: float
) -> dict[Partition, int]:
    """As `Log.expiring` says.

    Of a retention by size a record has used up as much as there are offsets after it, once the log has begun to lose
    its oldest ones.
    """
    found: dict[Partition, int] = {}
    for topic in sorted({each.topic for each in bounds}):
        mine = {each: held for each, held in bounds.items() if each.topic == topic}
        settings = log.settings(topic)
        retention = Retention() if settings is None else Retention.of(settings)
        if retention.seconds is not None:
            since = log.offsets_since(mine, now - retention.seconds * percent / 100)
            found |= {each: mine[each].end if offset is None else offset for each, offset in since.items()}
        if retention.by_size:
            for each, held in mine.items():
                if held.first > 0:
                    used_up = held.end - int((held.end - held.first) * percent / 100)
                    found[each] = max(used_up, found.get(each, 0))
    return found
